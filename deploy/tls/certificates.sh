#!/bin/sh
# Makes a certificate for every role, each in a folder of its own, and once the authority they are of.
#   deploy/tls/certificates.sh FOLDER                              # all of them
#   deploy/tls/certificates.sh FOLDER gateway                      # one, anew: it is put in the old one's place
# NATS_NAMES and POSTGRES_NAMES are what those servers are called in URLs, as openssl writes them: "DNS:a,IP:10.0.0.1".
# FOLDER/authority/key.pem makes anybody anything: keep it where no service runs.
set -eu
if [ $# -lt 1 ]; then
  echo "usage: $0 FOLDER [ROLE...]" >&2
  exit 2
fi
folder=$1
shift
[ $# -gt 0 ] || set -- gateway manager engine operator owner backup nats postgres
days=${DAYS:-90}
umask 077
authority=$folder/authority
mkdir -p "$authority"

if [ ! -e "$authority/key.pem" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=parrot-authority \
    -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$authority/key.pem" -out "$authority/cert.pem" 2>/dev/null
fi

# Prints what a certificate is good for.
extensions() {
  names=DNS:$1
  usage=clientAuth
  case $1 in
    manager) usage=clientAuth,serverAuth ;;
    nats)
      names=${NATS_NAMES:-DNS:nats,DNS:nats-0.nats,DNS:nats-1.nats,DNS:nats-2.nats}
      usage=clientAuth,serverAuth
      ;;
    postgres)
      names=${POSTGRES_NAMES:-DNS:postgres}
      usage=serverAuth
      ;;
  esac
  printf 'subjectAltName=%s\nextendedKeyUsage=%s\nkeyUsage=critical,digitalSignature\nbasicConstraints=critical,CA:FALSE\n' \
    "$names" "$usage"
}

for role in "$@"; do
  case $role in
    gateway | manager | engine | operator | owner | backup | nats | postgres) ;;
    *)
      echo "$0: there is no role $role" >&2
      exit 2
      ;;
  esac
  new=$folder/$role.new
  rm -rf "$new"
  mkdir "$new"
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$role" \
    -keyout "$new/tls.key" -out "$new/request.pem" 2>/dev/null
  extensions "$role" >"$new/extensions"
  openssl x509 -req -in "$new/request.pem" -CA "$authority/cert.pem" -CAkey "$authority/key.pem" -CAcreateserial \
    -days "$days" -extfile "$new/extensions" -out "$new/tls.crt" 2>/dev/null
  cp "$authority/cert.pem" "$new/ca.crt"
  rm "$new/request.pem" "$new/extensions"
  rm -rf "${folder:?}/$role"
  mv "$new" "$folder/$role"
done
