package replica

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// protocol is what replicas speak with each other after the handshake of TLS. Its number changes when one of another
// version could not understand it.
const protocol = "brokerd-replica/1"

// newCertificate makes the key and the certificate of a process. The list of replicas says until when it is valid, so
// that the clocks of two machines do not matter.
func newCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	template := x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "brokerd replica"},
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // no end, by RFC 5280, section 4.1.2.5
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// errStranger is the error for a process that is not in the list of replicas.
var errStranger = errors.New("its certificate is not in the list of replicas")

// mutual is the configuration of both ends of a connection between replicas. Each end proves that it has the key of its
// certificate, and accepted reports whether the other's is in the list.
func mutual(own tls.Certificate, accepted func(certificate []byte) bool) *tls.Config {
	return &tls.Config{
		Certificates:           []tls.Certificate{own},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // no authority has signed the certificate: VerifyConnection compares it
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{protocol},
		SessionTicketsDisabled: true, // each connection compares the certificate
		VerifyConnection: func(state tls.ConnectionState) error {
			switch {
			case state.NegotiatedProtocol != protocol:
				return errors.New("it does not speak " + protocol)
			case !accepted(state.PeerCertificates[0].Raw):
				return errStranger
			}
			return nil
		},
	}
}
