"""Our policies on the Hub: up, down, and what their page says; pretrained models are not ours."""
