#!/bin/sh
# Brings what git has to the cluster: a job that runs is restarted with its state, else it is started.
#
#   examples/deploy.sh JOB FILE      in a checkout; JOB is the name in FILE
#
# Exit code 0: the new version runs, and a checkpoint of it is complete; where the job has no input it is on trial until
# there is some. Otherwise the version before it still runs.
set -eu
job=$1
file=$2

git pull --quiet --ff-only
version=$(git rev-parse --short HEAD)
if ! git diff --quiet HEAD; then
  echo "the checkout has changes that are not in git" >&2
  exit 1
fi

minflinkd check "$file" --no-spark                    # what the file alone shows; needs no daemon

# 4: there is no such job. Anything else, such as no daemon, ends the deployment.
running=0
minflinkd info "$job" >/dev/null || running=$?
case $running in
  0)
    minflinkd hot-restart "$job" "$file" --dry-run    # the faults, and what becomes of the state; changes nothing
    minflinkd hot-restart "$job" "$file" --yes        # where it fails, the version before it goes on
    ;;
  4)
    minflinkd run "$file" --dry-run
    minflinkd run "$file"
    minflinkd checkpoint "$job"                       # it processes, and its state can be stored
    ;;
  *) exit "$running" ;;
esac

echo "$job runs version $version"
