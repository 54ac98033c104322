#!/bin/bash
# One data-parallel step in ringtree and in PyTorch, each rank in a network namespace of its own.
#
#   [variables] step.sh TABLE.csv NAMESPACE...
#
# The namespaces exist and are connected; the first is reached by the others at MASTER. Lines are
# appended to TABLE.csv, whose summary is `step_time summary TABLE.csv`. Needs root, and the program
# (cargo build --release --example step_time). Variables:
#   MASTER     address of the first namespace              default 10.77.0.1
#   INTERFACE  its name in every namespace, for Gloo       default eth0
#   PYTHON     an interpreter with torch; empty: ours only
#   ROUNDS     how often the two take turns                default 3
#   TUNING     a tuning table; runs with it come besides   default none
#   MEASURE    more options for `step_time measure`
#   ALGORITHMS what ours is measured by                    default auto
#   SIZES      bucket sizes that ours is measured with     default auto
#   NICE       niceness of the ranks                       default 0
set -u
table=$1
shift
hosts=("$@")
here=$(cd "$(dirname "$0")" && pwd)
program=${PROGRAM:-$here/../../target/release/examples/step_time}
port=$((20000 + RANDOM % 9000))
secret=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')

# Starts "$@" as one rank in every namespace; the first one's output is the answer.
everywhere() {
  port=$((port + 7))
  local rank pids=()
  for rank in "${!hosts[@]}"; do
    timeout "${LIMIT:-120}" nice -n "${NICE:-0}" ip netns exec "${hosts[$rank]}" env \
      RANK="$rank" WORLD_SIZE="${#hosts[@]}" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
      MASTER_ADDR="${MASTER:-10.77.0.1}" MASTER_PORT="$port" \
      RINGTREE_SECRET="$secret" GLOO_SOCKET_IFNAME="${INTERFACE:-eth0}" "$@" &
    pids+=($!)
  done
  wait "${pids[@]}"
}

# shellcheck disable=SC2086
ours() { everywhere "$program" measure ${MEASURE:-} "$@"; }

[ -s "$table" ] || "$program" header >"$table"
for _ in $(seq "${ROUNDS:-3}"); do
  for size in ${SIZES:-auto}; do
    for algorithm in ${ALGORITHMS:-auto}; do
      [ "$algorithm" = auto ] && chosen="" || chosen="--algorithm $algorithm"
      # shellcheck disable=SC2086
      ours --bucket "$size" $chosen
    done
  done
  [ -n "${TUNING:-}" ] && RINGTREE_TUNING=$TUNING ours --label ringtree-tuned
  [ -n "${PYTHON:-}" ] && everywhere "$PYTHON" "$here/torch_step.py"
done >>"$table"
