# shellcheck shell=bash
# A throw-away certificate authority per cluster: EC keys (fast to make), a client certificate per component.
# Sourced after env.sh.

pki_init() {  # pki_init SAN...: the CA, the service account key pair, and the API server's certificate
  mkdir -p "$PKI"
  [ ! -s "$PKI/apiserver.crt" ] || return 0
  openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/ca.key" 2>/dev/null
  openssl req -x509 -new -key "$PKI/ca.key" -subj /CN=test-ca -days 30 -out "$PKI/ca.crt"
  openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/sa.key" 2>/dev/null
  openssl ec -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub" 2>/dev/null
  certificate apiserver /CN=kube-apiserver "$(IFS=,; echo "$*")"
}

certificate() {  # certificate NAME SUBJECT [SAN,...]: with a SAN it serves too, without it is a client only
  local name=$1 subject=$2 san=${3:-} usage=clientAuth
  [ ! -s "$PKI/$name.crt" ] || return 0
  [ -z "$san" ] || usage=serverAuth,clientAuth
  openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/$name.key" 2>/dev/null
  openssl req -new -key "$PKI/$name.key" -subj "$subject" -out "$PKI/$name.csr"
  { echo "extendedKeyUsage=$usage"; [ -z "$san" ] || echo "subjectAltName=$san"; } >"$PKI/$name.ext"
  openssl x509 -req -in "$PKI/$name.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial \
    -days 30 -extfile "$PKI/$name.ext" -out "$PKI/$name.crt" 2>/dev/null
  rm -f "$PKI/$name.csr" "$PKI/$name.ext"
}

kubeconfig() {  # kubeconfig FILE CERTIFICATE SERVER: credentials inline, so that the file can be copied anywhere
  (
    umask 077
    cat >"$1" <<Y
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters:
- {name: test, cluster: {server: "$3", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}}
users:
- {name: test, user: {client-certificate-data: $(base64 -w0 "$PKI/$2.crt"), client-key-data: $(base64 -w0 "$PKI/$2.key")}}
Y
  )
}
