"""The documentation site: the pages of docs/, with reference pages made from the code."""
