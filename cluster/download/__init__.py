"""Models by name: fetched from the Hugging Face hub or an object store, once on each node."""
