#!/bin/sh
# Fills an empty database from a file that backup.sh wrote, all of it or nothing. Managers must not run.
#   deploy/postgres/restore.sh postgresql://parrot@db.internal/parrot parrot.dump
set -eu
if [ $# -ne 2 ]; then
  echo "usage: $0 POSTGRES_URL FILE" >&2
  exit 2
fi
if [ ! -r "$2" ]; then
  echo "$0: $2 can't be read" >&2
  exit 1
fi
tables=$(psql --no-psqlrc --tuples-only --no-align --dbname "$1" \
  --command "select count(*) from pg_tables where schemaname = 'public'")
if [ "$tables" -ne 0 ]; then
  echo "$0: the database has $tables tables; restore into an empty one (createdb)" >&2
  exit 1
fi
pg_restore --single-transaction --exit-on-error --no-owner --no-privileges --dbname "$1" "$2"
