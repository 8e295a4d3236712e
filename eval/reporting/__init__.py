"""From rows to sentences, tables, charts and one HTML page."""
