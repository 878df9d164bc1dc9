#!/usr/bin/env bash
# Makes the certificates of this folder again, by OpenSSL 3. The tests need neither it nor this script.
#
# NAME.pem is what a peer has: its key, then the chain that it shows. NAME.trust.pem is what the other end trusts then; without
# it root.trust.pem counts. What is asked of them is in cases.txt. Certificates end in the year 2126, or ended in 2001.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p pem
rm -f pem/*.pem
out=$PWD/pem
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

NAMES="subjectAltName=DNS:localhost,IP:127.0.0.1"
CA="basicConstraints=critical,CA:TRUE"

# key NAME KIND: a private key.
key() {
    case $2 in
        rsa-pss-*) openssl genpkey -quiet -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:"${2#rsa-pss-}" -out "$1.key" ;;
        rsa-*) openssl genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:"${2#rsa-}" -out "$1.key" ;;
        ed25519 | ed448) openssl genpkey -algorithm "$2" -out "$1.key" ;;
        *) openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:"$2" -pkeyopt ec_param_enc:named_curve -out "$1.key" ;;
    esac
}

# sign NAME SUBJECT ISSUER EXTENSIONS [OPTION...]: a certificate for NAME.key; NAME is its own issuer where ISSUER is "self".
# The variables from and until are its dates.
from=20000101000000Z
until=21260101000000Z
serial=1000
sign() {
    local name=$1 subject=$2 issuer=$3 extensions=$4
    shift 4
    printf '%b\n' "[all]\n$extensions" > extensions.txt
    # Of version 1 where there are none.
    local with=(-extfile extensions.txt -extensions all)
    [ -n "$extensions" ] || with=()
    printf '[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nserial=serial.txt\nnew_certs_dir=.\npolicy=p\nunique_subject=no\n%s\n' \
        '[p]' 'countryName=optional' 'organizationName=optional' 'commonName=optional' > ca.txt
    : > index.txt
    serial=$((serial + 1))
    echo "$serial" > serial.txt
    openssl req -new -key "$name.key" -subj "$subject" -out "$name.csr" -config /dev/null 2>/dev/null \
        || openssl req -new -key "$name.key" -subj "$subject" -out "$name.csr"
    local by=(-cert "$issuer.crt" -keyfile "$issuer.key")
    [ "$issuer" != self ] || by=(-selfsign -keyfile "$name.key")
    openssl ca -batch -notext -config ca.txt -in "$name.csr" -out "$name.crt" "${by[@]}" -preserveDN \
        -startdate "$from" -enddate "$until" "${with[@]}" -md "${digest-sha256}" "$@" 2> errors.txt \
        || { cat errors.txt >&2; return 1; }
}

# has NAME CERTIFICATE...: the peer's file.
has() {
    local name=$1
    shift
    cat "${keyfile-$name.key}" > "$out/$name.pem"
    for certificate in "$@"; do cat "$certificate.crt" >> "$out/$name.pem"; done
}

# trusts NAME CERTIFICATE...: what the other end trusts.
trusts() {
    local name=$1
    shift
    for certificate in "$@"; do cat "$certificate.crt"; done > "$out/$name.trust.pem"
}

# leaf NAME EXTENSIONS [ISSUER...]: a peer with the common key; further issuers are shown, too.
leaf() {
    local name=$1 extensions=$2 issuer=${3-root}
    shift $(($# > 2 ? 3 : 2))
    cp leaf.key "$name.key"
    sign "$name" "${subject-/O=Org/CN=$name}" "$issuer" "$extensions"
    local chain=("$name")
    [ "$issuer" = root ] || chain+=("$issuer")
    has "$name" "${chain[@]}" "$@"
}

# authority NAME ISSUER EXTENSIONS [KIND]
authority() {
    key "$1" "${4-P-256}"
    sign "$1" "/O=Org/CN=$1" "$2" "$3"
}

key leaf P-256
authority root self "$CA"
trusts root root
authority issuer root "$CA"
authority stranger self "$CA"

leaf plain "$NAMES"
leaf below-an-intermediate "$NAMES" issuer

# Versions.
subject=/CN=localhost leaf version-1 ""
subject=/CN=localhost leaf version-1-trusted ""
trusts version-1-trusted version-1-trusted
authority issuer-of-version-1 root ""
leaf version-1-of-issuer "$NAMES" issuer-of-version-1
authority root-of-version-1 self ""
leaf version-1-of-root "$NAMES" root-of-version-1
trusts version-1-of-root root-of-version-1

# Key usages.
leaf usage-digital-signature "$NAMES\nkeyUsage=critical,digitalSignature"
leaf usage-key-encipherment "$NAMES\nkeyUsage=critical,keyEncipherment"
leaf usage-both "$NAMES\nkeyUsage=critical,digitalSignature,keyEncipherment"
leaf usage-key-agreement "$NAMES\nkeyUsage=critical,keyAgreement"
leaf usage-cert-sign "$NAMES\nkeyUsage=critical,keyCertSign"
leaf usage-key-encipherment-trusted "$NAMES\nkeyUsage=critical,keyEncipherment"
trusts usage-key-encipherment-trusted usage-key-encipherment-trusted
key usage-key-encipherment-rsa rsa-2048
sign usage-key-encipherment-rsa "/O=Org/CN=usage-key-encipherment-rsa" root "$NAMES\nkeyUsage=critical,keyEncipherment"
has usage-key-encipherment-rsa usage-key-encipherment-rsa

# Extended key usages.
leaf purpose-server "$NAMES\nextendedKeyUsage=serverAuth"
leaf purpose-client "$NAMES\nextendedKeyUsage=clientAuth"
leaf purpose-both "$NAMES\nextendedKeyUsage=serverAuth,clientAuth"
leaf purpose-code-signing "$NAMES\nextendedKeyUsage=codeSigning"
leaf purpose-any "$NAMES\nextendedKeyUsage=anyExtendedKeyUsage"
leaf purpose-any-critical "$NAMES\nextendedKeyUsage=critical,anyExtendedKeyUsage"
leaf purpose-code-signing-trusted "$NAMES\nextendedKeyUsage=codeSigning"
trusts purpose-code-signing-trusted purpose-code-signing-trusted
authority issuer-for-servers root "$CA\nextendedKeyUsage=serverAuth"
leaf purpose-of-issuer-server "$NAMES" issuer-for-servers
authority issuer-for-any root "$CA\nextendedKeyUsage=anyExtendedKeyUsage"
leaf purpose-of-issuer-any "$NAMES" issuer-for-any

# Basic constraints, and what else an issuer needs.
leaf authority-as-peer "$NAMES\n$CA"
leaf authority-as-peer-trusted "$NAMES\n$CA"
trusts authority-as-peer-trusted authority-as-peer-trusted
authority issuer-no-authority root "basicConstraints=critical,CA:FALSE"
leaf issuer-is-no-authority "$NAMES" issuer-no-authority
authority issuer-unconstrained root "keyUsage=critical,keyCertSign"
leaf issuer-without-constraints "$NAMES" issuer-unconstrained
authority issuer-crl-sign root "$CA\nkeyUsage=critical,cRLSign"
leaf issuer-without-cert-sign "$NAMES" issuer-crl-sign
authority issuer-cert-sign root "$CA\nkeyUsage=critical,keyCertSign"
leaf issuer-with-cert-sign "$NAMES" issuer-cert-sign
authority root-no-authority self "basicConstraints=critical,CA:FALSE"
leaf root-is-no-authority "$NAMES" root-no-authority
trusts root-is-no-authority root-no-authority
authority root-unconstrained self "subjectKeyIdentifier=hash"
leaf root-without-constraints "$NAMES" root-unconstrained
trusts root-without-constraints root-unconstrained
authority root-crl-sign self "$CA\nkeyUsage=critical,cRLSign"
leaf root-without-cert-sign "$NAMES" root-crl-sign
trusts root-without-cert-sign root-crl-sign
leaf issued-by-a-trusted-peer "$NAMES" plain
trusts issued-by-a-trusted-peer plain
authority issuer-length-0 root "$CA,pathlen:0"
leaf path-length-kept "$NAMES" issuer-length-0
authority issuer-beyond issuer-length-0 "$CA"
leaf path-length-exceeded "$NAMES" issuer-beyond issuer-length-0
authority root-length-0 self "$CA,pathlen:0"
authority issuer-below-length-0 root-length-0 "$CA"
leaf path-length-of-root-exceeded "$NAMES" issuer-below-length-0
trusts path-length-of-root-exceeded root-length-0

# Signatures and keys: the authority's key and the peer's are of one kind.
# kind NAME KIND DIGEST [OPTION...]
kind() {
    local name=$1 kind=$2
    local digest=$3
    shift 3
    key "$name-root" "$kind"
    sign "$name-root" "/O=Org/CN=$name-root" self "$CA" "$@"
    key "$name" "$kind"
    sign "$name" "/O=Org/CN=$name" "$name-root" "$NAMES" "$@"
    has "$name" "$name"
    trusts "$name" "$name-root"
}
kind rsa-md5 rsa-2048 md5
kind rsa-sha1 rsa-2048 sha1
kind rsa-sha224 rsa-2048 sha224
kind rsa-sha256 rsa-2048 sha256
kind rsa-sha512 rsa-2048 sha512
kind rsa-pss rsa-2048 sha256 -sigopt rsa_padding_mode:pss -sigopt rsa_pss_saltlen:digest
kind rsa-pss-key rsa-pss-2048 sha256 -sigopt rsa_pss_saltlen:digest
kind ecdsa-sha1 P-256 sha1
kind ecdsa-p256 P-256 sha256
kind ecdsa-p256-sha512 P-256 sha512
kind ecdsa-p384 P-384 sha384
kind ecdsa-p384-sha256 P-384 sha256
kind ecdsa-p521 P-521 sha512
kind ecdsa-secp256k1 secp256k1 sha256
kind ecdsa-p224 secp224r1 sha256
kind ecdsa-p192 prime192v1 sha256
kind ed25519 ed25519 null
kind ed448 ed448 null
kind rsa-1024 rsa-1024 sha256
kind rsa-1023 rsa-1023 sha256
kind rsa-2047 rsa-2047 sha256
kind rsa-4096 rsa-4096 sha256
# Only the key of an authority is too small.
for bits in 768 1024; do
    key "rsa-$bits-issuer" "rsa-$bits"
    sign "rsa-$bits-issuer" "/O=Org/CN=rsa-$bits-issuer" root "$CA"
    leaf "rsa-$bits-of-issuer" "$NAMES" "rsa-$bits-issuer"
    key "rsa-$bits-root" "rsa-$bits"
    sign "rsa-$bits-root" "/O=Org/CN=rsa-$bits-root" self "$CA"
    leaf "rsa-$bits-of-root" "$NAMES" "rsa-$bits-root"
    has "rsa-$bits-of-root" "rsa-$bits-of-root"
    trusts "rsa-$bits-of-root" "rsa-$bits-root"
done
key rsa-1024-trusted rsa-1024
sign rsa-1024-trusted "/O=Org/CN=rsa-1024-trusted" self "$NAMES"
has rsa-1024-trusted rsa-1024-trusted
trusts rsa-1024-trusted rsa-1024-trusted
key md5-trusted rsa-2048
digest=md5 sign md5-trusted "/O=Org/CN=md5-trusted" self "$NAMES"
has md5-trusted md5-trusted
trusts md5-trusted md5-trusted

# Chains.
authority second issuer "$CA"
leaf chain-in-order "$NAMES" second issuer
cp chain-in-order.key chain-in-wrong-order.key
keyfile=leaf.key has chain-in-wrong-order chain-in-order issuer second
keyfile=leaf.key has chain-with-root chain-in-order second issuer root
keyfile=leaf.key has chain-without-intermediate chain-in-order issuer
keyfile=leaf.key has chain-of-one chain-in-order
keyfile=leaf.key has chain-with-unrelated plain stranger
keyfile=leaf.key has chain-with-unrelated-between chain-in-order stranger second issuer
keyfile=leaf.key has chain-trusted-in-the-midst chain-in-order second issuer
trusts chain-trusted-in-the-midst second
above=issuer
chain=(issuer)
for depth in 2 3 4 5 6 7; do
    authority "depth-$depth" "$above" "$CA"
    above=depth-$depth
    chain=("$above" "${chain[@]}")
    cp leaf.key "chain-of-$depth-authorities.key"
    sign "chain-of-$depth-authorities" "/O=Org/CN=chain-of-$depth-authorities" "$above" "$NAMES"
    [ "$depth" -lt 6 ] || has "chain-of-$depth-authorities" "chain-of-$depth-authorities" "${chain[@]}"
done
leaf unknown-issuer "$NAMES" stranger
has unknown-issuer unknown-issuer
# An authority of the same name with another key.
key impostor P-256
sign impostor /O=Org/CN=root self "$CA"
leaf issuer-of-the-same-name "$NAMES" impostor
has issuer-of-the-same-name issuer-of-the-same-name

# Dates.
dated() {
    local from=$1 until=$2
    shift 2
    "$@"
}
dated 20000101000000Z 20010101000000Z leaf expired "$NAMES"
dated 21000101000000Z 21260101000000Z leaf not-yet "$NAMES"
dated 20000101000000Z 20010101000000Z authority issuer-expired root "$CA"
leaf expired-issuer "$NAMES" issuer-expired
dated 21000101000000Z 21260101000000Z authority issuer-not-yet root "$CA"
leaf not-yet-issuer "$NAMES" issuer-not-yet
dated 20000101000000Z 20010101000000Z authority root-expired self "$CA"
leaf expired-root "$NAMES" root-expired
trusts expired-root root-expired
dated 21000101000000Z 21260101000000Z authority root-not-yet self "$CA"
leaf not-yet-root "$NAMES" root-not-yet
trusts not-yet-root root-not-yet
dated 20000101000000Z 20010101000000Z leaf expired-trusted "$NAMES"
trusts expired-trusted expired-trusted
dated 21000101000000Z 21260101000000Z leaf not-yet-trusted "$NAMES"
trusts not-yet-trusted not-yet-trusted

# Names.
leaf name-dns "subjectAltName=DNS:a.example.test"
leaf name-ip "subjectAltName=IP:127.0.0.1,IP:0:0:0:0:0:0:0:1"
leaf name-ip-as-dns "subjectAltName=DNS:127.0.0.1"
leaf name-wildcard "subjectAltName=DNS:*.example.test"
leaf name-wildcard-partial "subjectAltName=DNS:b*.example.test"
leaf name-wildcard-inner "subjectAltName=DNS:a.*.test"
leaf name-wildcard-top-level "subjectAltName=DNS:*.com"
leaf name-wildcard-two-levels "subjectAltName=DNS:*.co.uk"
leaf name-wildcard-private "subjectAltName=DNS:*.internal"
leaf name-wildcard-alone "subjectAltName=DNS:*"
subject=/O=Org/CN=localhost leaf name-common-alone "subjectKeyIdentifier=hash"
subject=/O=Org/CN=localhost leaf name-common-beside-dns "subjectAltName=DNS:a.example.test"
subject=/O=Org/CN=localhost leaf name-common-beside-ip "subjectAltName=IP:127.0.0.1"
leaf name-none "subjectKeyIdentifier=hash"
subject=/ leaf name-without-subject "subjectAltName=critical,DNS:localhost"
subject=/ leaf name-without-any "subjectKeyIdentifier=hash"
leaf name-trailing-dot "subjectAltName=DNS:localhost."
leaf name-upper-case "subjectAltName=DNS:A.EXAMPLE.TEST"
leaf name-idn "subjectAltName=DNS:xn--mnchen-3ya.example"
leaf name-underscore "subjectAltName=DNS:my_broker"
leaf name-uri-alone "subjectAltName=URI:spiffe://example.test/broker"
authority issuer-permitted root "$CA\nnameConstraints=critical,permitted;DNS:localhost,permitted;IP:127.0.0.0/255.0.0.0"
leaf constraint-kept "$NAMES" issuer-permitted
authority issuer-elsewhere root "$CA\nnameConstraints=critical,permitted;DNS:example.test"
leaf constraint-of-permitted-broken "subjectAltName=DNS:localhost" issuer-elsewhere
authority issuer-excluded root "$CA\nnameConstraints=critical,excluded;DNS:localhost"
leaf constraint-of-excluded-broken "subjectAltName=DNS:localhost" issuer-excluded
authority root-elsewhere self "$CA\nnameConstraints=critical,permitted;DNS:example.test"
leaf constraint-of-root-broken "subjectAltName=DNS:localhost" root-elsewhere
trusts constraint-of-root-broken root-elsewhere

# Certificates that nobody else issued.
for name in self-signed self-signed-trusted; do
    cp leaf.key "$name.key"
    sign "$name" "/O=Org/CN=$name" self "$NAMES"
    has "$name" "$name"
done
trusts self-signed-trusted self-signed-trusted
cp leaf.key self-signed-authority-trusted.key
sign self-signed-authority-trusted /O=Org/CN=self-signed-authority-trusted self "$NAMES\n$CA"
has self-signed-authority-trusted self-signed-authority-trusted
trusts self-signed-authority-trusted self-signed-authority-trusted
leaf trusted-of-a-stranger "$NAMES" stranger
has trusted-of-a-stranger trusted-of-a-stranger
trusts trusted-of-a-stranger trusted-of-a-stranger

# Extensions that nobody knows, and serial numbers.
leaf unknown-extension "$NAMES\n1.2.3.4=DER:0500"
leaf unknown-critical-extension "$NAMES\n1.2.3.4=critical,DER:0500"
leaf unknown-critical-extension-trusted "$NAMES\n1.2.3.4=critical,DER:0500"
trusts unknown-critical-extension-trusted unknown-critical-extension-trusted
authority issuer-unknown-critical root "$CA\n1.2.3.4=critical,DER:0500"
leaf unknown-critical-extension-of-issuer "$NAMES" issuer-unknown-critical
leaf policies-critical "$NAMES\ncertificatePolicies=critical,1.2.3.4"
# numbered NAME SERIAL: OpenSSL's "ca" takes no negative ones.
numbered() {
    cp leaf.key "$1.key"
    sign "$1" "/O=Org/CN=$1" self "$NAMES"
    openssl x509 -in "$1.crt" -CA root.crt -CAkey root.key -set_serial "$2" -preserve_dates -clrext -extfile extensions.txt \
        -extensions all -out "$1.numbered.crt"
    has "$1" "$1.numbered"
}
numbered serial-zero 0
numbered serial-negative -5
numbered serial-long 0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e
