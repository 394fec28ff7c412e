#!/bin/sh
# Deploys a job from git: a running job is restarted with its state, any other job is started.
#
#   examples/deploy.sh JOB FILE      in a checkout; JOB is the name in FILE
#
# Exit code 0: the new version runs, and has completed a checkpoint, or has no input yet and is on trial. With any other
# exit code the version that ran before still runs.
set -eu
job=$1
file=$2

git pull --quiet --ff-only
version=$(git rev-parse --short HEAD)
if ! git diff --quiet HEAD; then
  echo "the checkout has changes that are not in git" >&2
  exit 1
fi

minflinkd check "$file" --no-spark                    # faults that the file alone shows; needs no daemon

# Exit code 4: there is no such job. Anything else, such as no daemon, ends the deployment.
running=0
minflinkd info "$job" >/dev/null || running=$?
case $running in
  0)
    minflinkd hot-restart "$job" "$file" --dry-run    # shows faults, and what becomes of the state; changes nothing
    minflinkd hot-restart "$job" "$file" --yes        # if the new version fails, the old one goes on
    ;;
  4)
    minflinkd run "$file" --dry-run
    minflinkd run "$file"
    minflinkd checkpoint "$job"                       # waits until the job runs and its state is stored
    ;;
  *) exit "$running" ;;
esac

echo "$job runs version $version"
