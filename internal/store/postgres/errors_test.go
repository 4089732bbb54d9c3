package postgres

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"brokerd/internal/fault"
)

// Each error of the server has the reason that a caller can act on. What is a defect of a statement has none.
func TestClassify_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for code, reason := range map[string]string{
		"53100": "DISK_FULL", "53300": "DATABASE_BUSY", "25006": "READ_ONLY", "57014": "TOO_SLOW", "55P03": "TOO_SLOW",
		"XX001": "DATABASE_DAMAGED", "XX002": "DATABASE_DAMAGED", "28P01": "DATABASE_DENIED", "28000": "DATABASE_DENIED",
		"42501": "DATABASE_DENIED", "3D000": "NO_DATABASE", "53200": "IO_ERROR", "58030": "IO_ERROR",
		"08006": "DATABASE_LOST",
		"57P01": "DATABASE_LOST", "57P03": "DATABASE_LOST", "25P03": "DATABASE_LOST", "42P01": "", "23505": "", "22012": "",
	} {
		cause := fmt.Errorf("statement: %w", &pgconn.PgError{Code: code})
		err := classify(cause, false)
		var f *fault.Error
		switch named := errors.As(err, &f); {
		case !named && reason != "", named && (f.Reason != reason || f.Kind != fault.Unavailable):
			t.Errorf("%s: %v, want %q", code, err, reason)
		case !errors.Is(err, cause):
			t.Errorf("%s: the cause is lost", code)
		}
	}
	for reason, cause := range map[string]error{
		"DATABASE_LOST":   &net.OpError{Op: "dial", Err: errors.New("refused")},
		"DATABASE_DENIED": &tls.CertificateVerificationError{Err: errors.New("unknown authority")},
	} {
		var f *fault.Error
		if err := classify(cause, true); !errors.As(err, &f) || f.Reason != reason {
			t.Errorf("%v: %v, want %s", cause, err, reason)
		}
	}
}
