"""A simulator in virtual time over SGLang's real cache, allocator and scheduling rules; no model runs."""
