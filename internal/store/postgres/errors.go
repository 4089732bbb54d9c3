package postgres

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"brokerd/internal/fault"
)

// Reasons of errors that pass by themselves.
const (
	ReasonLost     = "DATABASE_LOST" // the server cannot be reached, or a connection to it was lost
	ReasonReadOnly = "READ_ONLY"     // it takes no changes
	ReasonBusy     = "DATABASE_BUSY" // it has no connection left

	ReasonNoStandby = "NO_STANDBY" // it waits for no synchronous standby: see Database.RequireStandby
)

// classify turns errors into faults where the caller can do something about them. lost says whether the connection
// is gone.
func classify(err error, lost bool) error {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	code := ""
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		code = refused.Code
	}
	var network net.Error
	var certificate *tls.CertificateVerificationError
	var connecting *pgconn.ConnectError
	switch {
	case code == "53100":
		f = fault.New(fault.Unavailable, "DISK_FULL", "the disk of the database is full: nothing can be written until there is room")
	case code == "53300":
		f = fault.New(fault.Unavailable, ReasonBusy, "the database has no connection left for the broker")
	case code == "25006":
		f = errReadOnly()
	case code == "57014", code == "55P03":
		f = fault.New(fault.Unavailable, "TOO_SLOW", "the database took too long: read a smaller page, or repeat it later")
	case code == "XX001", code == "XX002":
		f = fault.New(fault.Unavailable, "DATABASE_DAMAGED", "the database is damaged: look into the log of PostgreSQL")
	case code == "28P01", code == "28000":
		f = fault.New(fault.Unavailable, "DATABASE_DENIED", "the database does not accept the broker's user or password")
	case code == "42501":
		f = fault.New(fault.Unavailable, "DATABASE_DENIED", "the broker's user lacks a right in the database")
	case code == "3D000":
		f = fault.New(fault.Unavailable, "NO_DATABASE", "the server has no database of this name")
	case errors.As(err, &certificate):
		f = fault.New(fault.Unavailable, "DATABASE_DENIED", "the broker does not accept the certificate of the database")
	case strings.HasPrefix(code, "53"), strings.HasPrefix(code, "58"):
		f = fault.New(fault.Unavailable, "IO_ERROR", "the database fails")
	case lost, strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P"), code == "25P03",
		errors.As(err, &network), errors.As(err, &connecting):
		f = fault.New(fault.Unavailable, ReasonLost, "the broker has lost its connection to the database")
	default:
		return err
	}
	f.Cause = err
	return f
}

func errReadOnly() *fault.Error {
	return fault.New(fault.Unavailable, ReasonReadOnly,
		"the database takes no changes: it is a standby, or set to read only")
}

// withCause adds to the message of a fault what the server or the network says, on one line. The person who starts a
// broker may know it. It has no password.
func withCause(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Cause == nil {
		return err
	}
	shown := *f
	if f.Reason == ReasonLost {
		shown.Message = "the database cannot be reached"
	}
	shown.Message += ": " + strings.Join(strings.Fields(f.Cause.Error()), " ")
	return &shown
}

// damageOf returns what the server says of damage that it has met; empty if the error is another one.
func damageOf(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == "XX001" || refused.Code == "XX002") {
		return refused.Message
	}
	return ""
}

// errLost is the error of a statement for which there is no connection.
func errLost() error { return classify(errors.New("no connection"), true) }
