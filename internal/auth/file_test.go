package auth_test

import (
	"os"
	"path/filepath"
	"testing"

	"brokerd/internal/apptest"
	"brokerd/internal/auth"
	"brokerd/internal/fault"
)

func TestOperatorSecret_IsMadeOnceForItsUserAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := auth.OperatorSecret(dir)
	apptest.NoError(t, err)
	path := filepath.Join(dir, auth.CredentialFile)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != 44 { // 32 bytes in base64, and a line end
		t.Errorf("%v %v", info, err)
	}
	again, err := auth.OperatorSecret(dir)
	if err != nil || again != first {
		t.Errorf("another credential after a restart (%v)", err)
	}
	other, err := auth.OperatorSecret(t.TempDir())
	if err != nil || other == first {
		t.Errorf("the same credential in another folder (%v)", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v %v", files, err)
	}
}

func TestOperatorSecret_OneThatOthersMayReadIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	apptest.NoError(t, apptest.Err(auth.OperatorSecret(dir)))
	apptest.NoError(t, os.Chmod(filepath.Join(dir, auth.CredentialFile), 0o640))
	if _, err := auth.OperatorSecret(dir); fault.KindOf(err) != fault.Precondition {
		t.Error(err)
	}
}

func TestOperatorSecret_FileWithoutACredentialIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "guess", "AAAA", "not base64 but forty-three characters long.."} {
		dir := t.TempDir()
		apptest.NoError(t, os.WriteFile(filepath.Join(dir, auth.CredentialFile), []byte(text), 0o600))
		if _, err := auth.OperatorSecret(dir); fault.KindOf(err) != fault.Precondition {
			t.Errorf("%q: %v", text, err)
		}
	}
}
