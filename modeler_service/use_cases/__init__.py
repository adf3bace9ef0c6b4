"""The modeler's use cases, without HTTP."""
