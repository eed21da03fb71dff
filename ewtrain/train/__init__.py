"""From rows to a LoRA adapter."""

import os

# Torch's threads spin while they wait for each other. Where another process wants the same cores (two test
# workers, a server), that made a CPU step 3 to 5 times slower. Read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
