"""All golden model fixtures as data: small random checkpoints that together are awkward in every way.

What is done with them is in make_fixtures.py. A fixture's config.json is its family's base, updated
with `config` and relieved of the fields in `without`. Spellings (rope_theta / rope_scaling /
rope_parameters, torch_dtype / dtype, num_experts / num_local_experts) are written as given, because
reading them is part of what is tested.
"""

import fixtures_encoder_decoder
import fixtures_grouped_query
import fixtures_latent
import fixtures_multiplied
import fixtures_qwen
import fixtures_sinks

KINDS = [fixtures_grouped_query, fixtures_qwen, fixtures_latent, fixtures_multiplied, fixtures_sinks]

FAMILY_BASE = {
    family: base
    for kind in KINDS + [fixtures_encoder_decoder]
    for family, base in kind.BASES.items()
}
FIXTURES = [fixture for kind in KINDS for fixture in kind.FIXTURES]
ENCODER_DECODERS = fixtures_encoder_decoder.FIXTURES
