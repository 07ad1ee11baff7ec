"""A local page on which a person goes over labels and corrects them."""
