"""What the API is, as an OpenAPI document."""
