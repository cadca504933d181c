#!/bin/sh
# Writes everything Parrot keeps to one file, while it runs: what Postgres holds at one moment.
#   deploy/postgres/backup.sh postgresql://parrot@db.internal/parrot parrot.dump
set -eu
if [ $# -ne 2 ]; then
  echo "usage: $0 POSTGRES_URL FILE" >&2
  exit 2
fi
if [ -e "$2" ]; then
  echo "$0: $2 is there already; name another file" >&2
  exit 1
fi
# A half-written dump must not look like a whole one.
pg_dump --format=custom --no-owner --no-privileges --file "$2.part" "$1"
mv "$2.part" "$2"
