-- Three roles, so that nobody but migrations changes the schema, and a backup changes nothing:
--
--   parrot_owner     `parrot-manager --migrate`: makes and changes tables
--   parrot_manager   managers: reads and writes what is in them
--   parrot_backup    deploy/postgres/backup.sh: reads
--
-- Run it in Parrot's own database, as somebody who may make roles and owns the database (a superuser, or what
-- your provider gives), before the first migration or at any time later; a second time does no harm:
--
--   PARROT_OWNER_PASSWORD=... PARROT_MANAGER_PASSWORD=... PARROT_BACKUP_PASSWORD=... \
--     psql --no-psqlrc --file deploy/postgres/roles.sql postgresql://admin@HOST/parrot
--
-- A role whose password is not given gets none, and keeps the one it has: for client certificates.
\set ON_ERROR_STOP on
\set QUIET on
\getenv owner_password PARROT_OWNER_PASSWORD
\getenv manager_password PARROT_MANAGER_PASSWORD
\getenv backup_password PARROT_BACKUP_PASSWORD

BEGIN;

-- Of several that run this at once, in other databases of the server, one after the other makes the roles.
SELECT pg_advisory_xact_lock(7097117) \g /dev/null
SELECT format('CREATE ROLE %I LOGIN', name)
  FROM unnest(ARRAY['parrot_owner', 'parrot_manager', 'parrot_backup']) AS name
  WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec

\if :{?owner_password}
ALTER ROLE parrot_owner PASSWORD :'owner_password';
\endif
\if :{?manager_password}
ALTER ROLE parrot_manager PASSWORD :'manager_password';
\endif
\if :{?backup_password}
ALTER ROLE parrot_backup PASSWORD :'backup_password';
\endif

-- What follows is said in the owner's name.
GRANT parrot_owner TO CURRENT_USER;

SELECT format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()) \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO parrot_owner, parrot_manager, parrot_backup', current_database()) \gexec
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO parrot_owner;
GRANT USAGE ON SCHEMA public TO parrot_manager, parrot_backup;

-- Tables that are there already, of whoever migrated before.
SELECT format('ALTER TABLE public.%I OWNER TO parrot_owner', tablename)
  FROM pg_tables WHERE schemaname = 'public' AND tableowner <> 'parrot_owner' \gexec
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO parrot_manager;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO parrot_manager;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO parrot_backup;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO parrot_backup;

-- And those that migrations will make.
ALTER DEFAULT PRIVILEGES FOR ROLE parrot_owner IN SCHEMA public
  GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO parrot_manager;
ALTER DEFAULT PRIVILEGES FOR ROLE parrot_owner IN SCHEMA public GRANT USAGE ON SEQUENCES TO parrot_manager;
ALTER DEFAULT PRIVILEGES FOR ROLE parrot_owner IN SCHEMA public GRANT SELECT ON TABLES TO parrot_backup;
ALTER DEFAULT PRIVILEGES FOR ROLE parrot_owner IN SCHEMA public GRANT SELECT ON SEQUENCES TO parrot_backup;

COMMIT;
