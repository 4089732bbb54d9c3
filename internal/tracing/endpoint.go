package tracing

import (
	"crypto/tls"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"brokerd/internal/fault"
)

// CheckEndpoint returns fault.Invalid unless spans can be exported to the endpoint:
// https://HOST:PORT, or on loopback http://HOST:PORT, which may be written HOST:PORT.
func CheckEndpoint(endpoint string) error {
	_, _, err := parseEndpoint(endpoint)
	return err
}

// parseEndpoint returns the address to dial and how to secure the connection.
func parseEndpoint(endpoint string) (string, credentials.TransportCredentials, error) {
	text := endpoint
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Port() == "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", nil, fault.New(fault.Invalid, "BAD_ENDPOINT", "%q is not of the form https://HOST:PORT or, on loopback, HOST:PORT", endpoint)
	}
	address := net.JoinHostPort(u.Hostname(), u.Port())
	switch u.Scheme {
	case "https":
		return address, credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), nil
	case "http":
		if loopback(u.Hostname()) {
			return address, insecure.NewCredentials(), nil
		}
		return "", nil, fault.New(fault.Invalid, "BAD_ENDPOINT", "%q is beyond loopback, where spans need TLS: write https://%s", endpoint, address)
	}
	return "", nil, fault.New(fault.Invalid, "BAD_ENDPOINT", "%q has the unknown scheme %q; known are https and http", endpoint, u.Scheme)
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
