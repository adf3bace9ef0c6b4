"""The curator's use cases, without HTTP: the owner's datasets and studies, the modeler's exchange."""
