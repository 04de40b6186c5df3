"""Where data comes from: found, downloaded, checked, or made."""
