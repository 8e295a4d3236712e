"""Import-time patches of SGLang, packaged as ``sglang_agentcache.patches``.

The rule: one small module per SGLang symbol touched, and none where SGLang has an extension point. Each says

* the target (the dotted name of the symbol) and the SGLang versions it is for,
* why no extension point serves,
* a fingerprint of the source it was written against: a changed upstream is refused, never patched blindly.
"""
