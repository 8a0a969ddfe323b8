"""What several steps read, write or remove. Steps import parts, and no part imports a step."""
