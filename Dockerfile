# Three images on shared layers: curator, modeler and demo. Dependencies come first, and code last, so that a change of
# code builds in seconds. `docker-compose build`, or `docker build --target curator .`
ARG BASE_IMAGE=python:3.11-slim

# What both services need; nothing of the owner's noise libraries.
FROM ${BASE_IMAGE} AS both
COPY requirements/slim.py requirements/modeler.txt /tmp/requirements/
RUN pip install --no-cache-dir --no-compile --require-hashes -r /tmp/requirements/modeler.txt \
    && python /tmp/requirements/slim.py
# The root is read-only at run time: make the folders that volumes inherit their owner from.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin blindopt \
    && install -d -o blindopt -g blindopt -m 0700 /data /tokens && install -d -o blindopt -g blindopt /out
ENV PYTHONUNBUFFERED=1
WORKDIR /app
STOPSIGNAL SIGTERM

# Versions are the same in all files, so only what is missing is added.
FROM both AS owner
COPY requirements/curator.txt /tmp/requirements/
RUN pip install --no-cache-dir --no-compile --require-hashes -r /tmp/requirements/curator.txt \
    && python /tmp/requirements/slim.py

FROM owner AS pictures
COPY requirements/demo.txt /tmp/requirements/
RUN pip install --no-cache-dir --no-compile --require-hashes -r /tmp/requirements/demo.txt \
    && python /tmp/requirements/slim.py

FROM both AS modeler
COPY shared/blindopt blindopt
COPY shared/service_kit service_kit
COPY modeler_service modeler_service
RUN python -m compileall -q .
USER blindopt
ENV BLINDOPT_MODELER_HOST=0.0.0.0 BLINDOPT_MODELER_DATA_DIR=/data
VOLUME ["/data", "/tokens"]
EXPOSE 8420
ENTRYPOINT ["python", "-m", "modeler_service"]
CMD ["serve"]

FROM owner AS curator
COPY shared/blindopt blindopt
COPY shared/service_kit service_kit
COPY curator_service curator_service
RUN python -m compileall -q .
USER blindopt
ENV BLINDOPT_CURATOR_HOST=0.0.0.0 BLINDOPT_CURATOR_DATA_DIR=/data
VOLUME ["/data", "/tokens"]
EXPOSE 8410
ENTRYPOINT ["python", "-m", "curator_service"]
CMD ["serve"]

# The demo's client plays the owner and the vendor through REST; with --tuning it starts a curator of its own.
FROM pictures AS demo
COPY shared/blindopt blindopt
COPY shared/service_kit service_kit
COPY curator_service curator_service
COPY demo demo
RUN python -m compileall -q .
USER blindopt
ENV MPLCONFIGDIR=/tmp/matplotlib COLUMNS=130
ENTRYPOINT ["python", "-m", "demo"]
