#!/bin/sh
# One night of a service: train on from the encoder in use, and publish what comes of it only where it is shown not to be worse.
#
#   ENCODER=models/all-MiniLM-L6-v2 DATASET=datasets/mine SERVICE=service sh examples/nightly.sh [settings of canopy train]
#
#   $SERVICE/current              -> releases/2026-11-30, what is served: $SERVICE/current/export
#   $SERVICE/releases/<night>/    preferences.jsonl, run/ with run/eval/, before/, export/, events.ndjson
#
# DATASET has the splits train and dev. The same command goes on after a crash. Exit status 3: the gate is shut, nothing is published.
set -eu
: "${ENCODER:?the encoder that is trained over}" "${DATASET:?a dataset folder}" "${SERVICE:?the folder of the releases}"
night=${NIGHT:-$(date -u +%Y-%m-%d)}
release=$SERVICE/releases/$night
current=$SERVICE/current
mkdir -p "$release"
# one at a time: the lock is the system's, so that a crash leaves none behind (macOS has no flock, there two must not be started)
if command -v flock > /dev/null; then
  exec 9> "$SERVICE/.lock"
  flock -n 9 || { echo "Another night is at work in $SERVICE." >&2; exit 1; }
fi
canopy() { echo "$night: canopy $1" >&2; ${CANOPY:-npx canopy} "$@" --events "$release/events.ndjson"; }

before=
# a link to a release that is gone is no first night: cd says so, and the script ends
if [ -e "$current" ] || [ -L "$current" ]; then
  before=$(cd "$current" && pwd -P)
fi
if [ "$before" = "$(cd "$release" && pwd -P)" ]; then
  echo "$night is published already."
  exit 0
fi

canopy check "$DATASET"
canopy preferences --dataset "$DATASET" --split train --output "$release/preferences.jsonl"
canopy train --encoder "$ENCODER" ${before:+--adapter "$before/run/adapter"} --dataset "$DATASET" \
  --preferences "$release/preferences.jsonl" --output "$release/run" --resume "$@"
canopy evaluate --encoder "$ENCODER" --adapter "$release/run/adapter" --dataset "$DATASET" --split dev \
  --output "$release/run/eval"

# the encoder in use is measured on today's questions, too
if [ -n "$before" ]; then
  canopy evaluate --encoder "$ENCODER" --adapter "$before/run/adapter" --dataset "$DATASET" --split dev \
    --output "$release/before" --no-report
  canopy compare "$release/before" "$release/run/eval" \
    --require "${GATE:-decision_accuracy >= -2}" "${GATE_RECALL:-gold_recall >= -3}"
fi
canopy export --encoder "$ENCODER" --adapter "$release/run/adapter" --bundle --output "$release/export"

# a link is replaced in one step: whoever opens the folder finds the old encoder or the new one. What a crash left of it goes first, or
# the new link would be made inside the folder that it names; mv would go inside, too, without GNU's -T
rm -f "$current.new"
ln -s "releases/$night" "$current.new"
node -e 'fs.renameSync(process.argv[1], process.argv[2])' "$current.new" "$current"
echo "Published: $release/export"
