"""The models of an application, in one gateway replica and beside the others."""
