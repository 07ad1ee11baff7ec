"""Upload and download of policies on the Hugging Face Hub, with their model cards."""
