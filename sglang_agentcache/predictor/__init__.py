"""How long an idle trajectory will stay idle, from its pending tool calls and its own past."""
