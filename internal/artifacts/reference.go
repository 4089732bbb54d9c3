package artifacts

import (
	"fmt"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
)

// Find checks that a session has the artifact of a reference such as api.yaml or api.yaml@3. Errors:
// fault.NotFound.
func (s *Service) Find(q store.Querier, session int64, text string) error {
	name, version := reference(text)
	_, err := find(q, session, name, version)
	return err
}

// nameOf returns the reference to a version, such as api.yaml@3.
func nameOf(v *pb.ArtifactVersion) string { return fmt.Sprintf("%s@%d", v.Name, v.Version) }

// reference splits a text such as api.yaml@3 into a name and a version, 0 if it has none.
func reference(text string) (name string, version int64) {
	i := strings.LastIndexByte(text, '@')
	if i < 0 {
		return text, 0
	}
	n, err := strconv.ParseUint(text[i+1:], 10, 63)
	if err != nil || n == 0 {
		return text, 0
	}
	return text[:i], int64(n)
}
