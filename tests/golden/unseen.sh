#!/usr/bin/env bash
# Makes ten steps that no constant of the planner was chosen with, and checks them against the hashes
# below: of models that nobody ran, and of the trainer on the virtual device.
#
#   tests/golden/unseen.sh FOLDER_OF_EXAMPLES FOLDER    then: gaps FOLDER
#
# The hashes were committed before the planner that they judge was written.
set -euo pipefail
examples=$(cd "$1" && pwd)
mkdir -p "$2"
cd "$2"

model() { # name, arguments of plan
  local name=$1
  shift
  "$examples/plan" "$@" --save-profile "$name.profile.json" >/dev/null
}
trainer() { # name, arguments of train_moe
  local name=$1
  shift
  "$examples/train_moe" --device virtual --policy=automatic --memory=arena --plan-effort=20 \
    --offload-modules=all --min-tensor-elements=0 --steps 4 "$@" --save-plan "$name" >/dev/null
  rm -f "$name.plan.json"
}

model qwen_b200 --model qwen3-30b-a3b --machine b200 --set microbatches=6 --set in_flight=3
model grok_h100 --model grok-2 --machine h100 --gpus-per-host 2 --set microbatches=4 --set in_flight=2
model deepseek_gh200 --model deepseek-v3 --machine gh200 --set layers=32 --set microbatches=6
model proxy_deep --model deepseek-v3-proxy --machine h100 --set layers=12 --set microbatches=5 \
  --set in_flight=3 --set hidden=4096
model dense_gb200 --model deepseek-v3-proxy --machine gb200 --set layers=20 --set dense_layers=20 \
  --set dense_ffn=18432 --set microbatches=3 --set in_flight=1
model latent_long --model deepseek-v3 --machine h200 --set layers=16 --set microbatches=16 \
  --set in_flight=6 --gpus-per-host 4
trainer trainer_wide --layers 3 --hidden 96 --ffn 160 --microbatches 3 --in-flight 2 \
  --expert-capacity 1.25 --device-budget 6MB
trainer trainer_tall --layers 8 --batch 3 --microbatches 5 --in-flight 4 --expert-capacity 1.5 \
  --shared-experts 1 --device-budget 4MB
trainer trainer_dense --layers 5 --dense-layers 5 --microbatches 7 --in-flight 3 --device-budget 3MB
trainer trainer_ahead --layers 4 --mtp 2 --microbatches 2 --in-flight 1 --expert-capacity 1 \
  --device-budget 4MB

sha256sum --check --quiet <<'hashes'
8c359a019e59a81105876f2bcb5acdb29c90ba0d21ff844761906c1977c51a6e  deepseek_gh200.profile.json
a733f40c299a1daba0d84c1f07433ae88aa1634a8bbc4b195a9e893ac9cdb20b  dense_gb200.profile.json
73460229c21cb4e3acf2c5aba43c1d97ead0c21c8054cb1a92975d79a750ad03  grok_h100.profile.json
3511f858c9984b461bc953ab6d844a707686525553aefb29a2834c10a6c8d64d  latent_long.profile.json
df90b348b7362bc6854b3217a7b7e79858d1f651147eb14a90b687baddaaa55d  proxy_deep.profile.json
65ab47fd83a26d7d209f3b02173af939f7951016d4f45168435fb23993b5b596  qwen_b200.profile.json
aae90ffd5f21f3b1569fa9ce6f49717366bcc69c17dc35a7a820e08a64de461a  trainer_ahead.profile.json
6507501d086bc5c11ae3aeb075746662e155de5a0f826aeedee2941a5bbd2b20  trainer_dense.profile.json
cea5d340cd21ba35ad7dcd0421fc0176d5461249db42388cc3e53e542be0d23b  trainer_tall.profile.json
abadbaa25241eddf8f3e41a0dd63ef8c0327ae8f140545568b8d73ce901e564c  trainer_wide.profile.json
hashes
