package artifacts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
)

func reference(v *pb.ArtifactVersion) string {
	return fmt.Sprintf("%s@%d", v.GetName(), v.GetVersion())
}

func TestUpload_AddsVersionsThatNeverChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("builder-1", "builder")
	h := header("architecture/api.yaml", []byte("one"))
	h.MediaType, h.Description, h.TaskId, h.Labels = "application/yaml", "the API", "t1", map[string]string{"stage": "draft"}
	out, err := a.try(h, []byte("one"))
	must(t, err)
	first := out.Artifact
	want := &pb.ArtifactVersion{
		Name: "architecture/api.yaml", Version: 1, Revision: first.Revision, Size: 3, Sha256: sumOf("one"), MediaType: "application/yaml",
		Description: "the API", Labels: map[string]string{"stage": "draft"}, TaskId: "t1", Author: "builder-1", CreatedAt: first.CreatedAt, Newest: true,
	}
	if diff := cmp.Diff(want, first, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	second := a.upload("architecture/api.yaml", "two")
	if second.Version != 2 || !second.Newest {
		t.Errorf("the second upload is %v", second)
	}
	if got := a.content("architecture/api.yaml", 1) + a.content("architecture/api.yaml", 2) + a.content("architecture/api.yaml", 0); got != "onetwotwo" {
		t.Errorf("the contents are %q", got)
	}
	got, err := a.GetArtifact(a.ctx, &pb.GetArtifactRequest{Name: "architecture/api.yaml", Version: 1})
	must(t, err)
	first.Newest, first.ReplacedAt = false, second.CreatedAt
	if diff := cmp.Diff([]*pb.ArtifactVersion{second, first}, got.Versions, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(first, got.Artifact, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	w.Restart()
	if got := a.content("architecture/api.yaml", 1); got != "one" {
		t.Errorf("after a restart the content is %q", got)
	}
}

func TestUpload_SameContentIsStoredOnceAndSkippedByItsHash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	content := strings.Repeat("x", 300_000)
	a.upload("one", content)
	again, err := a.try(header("one", []byte(content)), []byte(content))
	must(t, err)
	if !again.Unchanged || again.Artifact.Version != 1 {
		t.Errorf("the same content again is %v", again)
	}
	b.upload("two", content)
	h := &pb.ArtifactHeader{Name: "three", Size: int64(len(content)), Sha256: strings.ToUpper(sumOf(content))}
	out, err := b.try(h, nil) // no content at all
	must(t, err)
	if !out.Skipped || out.Artifact.Version != 1 || b.content("three", 0) != content {
		t.Errorf("the upload by hash is %v", out)
	}
	if files := w.files(); len(files) != 1 || files[0] != sumOf(content) {
		t.Errorf("the folder has %v", files)
	}
	// Another session has its own contents: a hash alone is no access.
	other := w.session("other", nil)
	_, err = other.try(&pb.ArtifactHeader{Name: "x", Size: int64(len(content)), Sha256: sumOf(content)}, nil)
	refused(t, err, codes.InvalidArgument, "SIZE_MISMATCH")
	_, _, err = other.download(&pb.DownloadArtifactRequest{Sha256: sumOf(content)})
	refused(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
	other.upload("x", content)
	if files := w.files(); len(files) != 1 {
		t.Errorf("the folder has %v", files)
	}
	// One deletion does not take the file from the other session.
	_, err = w.operator().DeleteArtifact(a.ctx, &pb.DeleteArtifactRequest{Name: "one"})
	must(t, err)
	for _, name := range []string{"two", "three"} {
		_, err = w.operator().DeleteArtifact(a.ctx, &pb.DeleteArtifactRequest{Name: name})
		must(t, err)
	}
	if other.content("x", 0) != content {
		t.Error("the other session has lost its content")
	}
	deleted, err := other.DeleteArtifact(other.ctx, &pb.DeleteArtifactRequest{Name: "x"})
	must(t, err)
	if deleted.Versions != 1 || deleted.FreedBytes != int64(len(content)) {
		t.Errorf("the deletion is %v", deleted)
	}
	w.awaitFiles(0, 0)
}

func TestUpload_MustBeWhatTheHeaderAnnounces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	for name, test := range map[string]struct {
		header *pb.ArtifactHeader
		reason string
	}{
		"too short":         {&pb.ArtifactHeader{Name: "x", Size: 4}, "SIZE_MISMATCH"},
		"too long":          {&pb.ArtifactHeader{Name: "x", Size: 2}, "SIZE_MISMATCH"},
		"another hash":      {&pb.ArtifactHeader{Name: "x", Size: 3, Sha256: sumOf("def")}, "HASH_MISMATCH"},
		"no hash":           {&pb.ArtifactHeader{Name: "x", Size: 3, Sha256: "abc"}, "INVALID_ARGUMENT"},
		"negative":          {&pb.ArtifactHeader{Name: "x", Size: -1}, "INVALID_ARGUMENT"},
		"request id":        {&pb.ArtifactHeader{Name: "x", Size: 3, RequestId: "7"}, "INVALID_ARGUMENT"},
		"description":       {&pb.ArtifactHeader{Name: "x", Size: 3, Description: "a\nb"}, "INVALID_ARGUMENT"},
		"no header at all":  {nil, "INVALID_ARGUMENT"},
		"two headers":       {&pb.ArtifactHeader{Name: "x", Size: 3}, "INVALID_ARGUMENT"},
		"a chunk too large": {&pb.ArtifactHeader{Name: "x", Size: 1 << 20}, "INVALID_ARGUMENT"},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := a.UploadArtifact(a.ctx)
			must(t, err)
			if test.header != nil {
				send(t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: test.header}})
			}
			switch name {
			case "two headers":
				send(t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: test.header}})
			case "a chunk too large":
				send(t, stream, chunk(make([]byte, 256<<10+1)))
			default:
				send(t, stream, chunk([]byte("abc")))
			}
			_, err = stream.CloseAndRecv()
			refused(t, err, codes.InvalidArgument, test.reason)
		})
	}
	w.awaitFiles(0, 0)
	if list := a.list(&pb.ListArtifactsRequest{}); len(list) > 0 {
		t.Errorf("refused uploads leave %v", list)
	}
	if v := a.upload("empty", ""); v.Size != 0 || a.content("empty", 0) != "" {
		t.Errorf("an empty artifact is %v", v)
	}
}

func TestUpload_NamesAreRelativePaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	for _, name := range []string{
		"", "/etc/passwd", "../x", "a/../b", "./a", "a//b", `a\b`, "a\x00b", "a\nb", "a\u200bb", "a\u202eb", "a/", "a.", "a /b", "C:/x",
		"*.go", "a?b", "a@3", strings.Repeat("a", 1025), "a\xff",
	} {
		stream, err := a.UploadArtifact(a.ctx)
		must(t, err)
		if err := stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: &pb.ArtifactHeader{Name: name}}}); err != nil {
			continue // the client itself refuses text that is not UTF-8
		}
		if _, err := stream.CloseAndRecv(); err == nil {
			t.Errorf("the name %q is accepted", name)
		} else {
			refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
		}
	}
	for raw, stored := range map[string]string{
		"a": "a", "src/ä.go": "src/ä.go", "a\u0308": "ä", "a@b": "a@b", "a@0": "a@0", ".hidden": ".hidden", "東京/計画.md": "東京/計画.md",
	} {
		if v := a.upload(raw, raw); v.Name != stored || a.content(raw, 0) != raw {
			t.Errorf("%q is stored as %q", raw, v.Name)
		}
	}
	_, err := a.GetArtifact(a.ctx, &pb.GetArtifactRequest{Name: "src/a.go"})
	refused(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
	if !strings.Contains(err.Error(), "did you mean src/ä.go?") {
		t.Errorf("no near name in %v", err)
	}
}

func TestUpload_RepeatedRequestAddsOneVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	h := header("x", []byte("one"))
	h.RequestId = uuid.NewString()
	first, err := a.try(h, []byte("one"))
	must(t, err)
	a.upload("x", "two")
	again, err := a.try(h, []byte("one"))
	must(t, err)
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	_, err = a.try(h, []byte("six"))
	refused(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	if got := names(a.list(&pb.ListArtifactsRequest{AllVersions: true})); cmp.Diff([]string{"x@2", "x@1"}, got) != "" {
		t.Errorf("the versions are %v", got)
	}
}

func TestDownload_SendsPartsFromAnOffset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	content := strings.Repeat("0123456789", 20_000)
	a.upload("x", content)
	for _, part := range []struct{ offset, length, end int64 }{
		{0, 0, 200_000}, {150_003, 0, 200_000}, {5, 10, 15}, {199_999, 100, 200_000}, {200_000, 0, 200_000}, {0, 70_000, 70_000},
	} {
		_, got, err := a.download(&pb.DownloadArtifactRequest{Name: "x", Offset: part.offset, Length: part.length})
		if err != nil || string(got) != content[part.offset:part.end] {
			t.Errorf("%v: %d bytes, %v", part, len(got), err)
		}
	}
	_, _, err := a.download(&pb.DownloadArtifactRequest{Name: "x", Offset: 200_001})
	refused(t, err, codes.OutOfRange, "OFFSET_TOO_LARGE")
	_, _, err = a.download(&pb.DownloadArtifactRequest{Name: "x", Version: 2})
	refused(t, err, codes.NotFound, "VERSION_NOT_FOUND")
	_, _, err = a.download(&pb.DownloadArtifactRequest{Name: "x", Sha256: sumOf(content)})
	refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	v, got, err := a.download(&pb.DownloadArtifactRequest{Sha256: sumOf(content)})
	if err != nil || v.GetName() != "x" || string(got) != content {
		t.Errorf("by hash: %v, %d bytes, %v", v, len(got), err)
	}
	must(t, os.Remove(filepath.Join(w.Dir(), "artifacts", sumOf(content))))
	_, _, err = a.download(&pb.DownloadArtifactRequest{Name: "x"})
	refused(t, err, codes.FailedPrecondition, "CONTENT_MISSING")
	a.upload("x", content) // the same content again restores the file
	if a.content("x", 0) != content {
		t.Error("the content was not restored")
	}
}

func TestList_SelectsByPrefixAgentTaskAndHash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	a.upload("docs/one", "1")
	a.upload("docs/one", "2")
	b.upload("docs/two", "1")
	h := header("src/a.go", []byte("3"))
	h.TaskId = "t1"
	_, err := b.try(h, []byte("3"))
	must(t, err)
	for _, test := range []struct {
		in   *pb.ListArtifactsRequest
		want string
	}{
		{&pb.ListArtifactsRequest{}, "docs/one@2 docs/two@1 src/a.go@1"},
		{&pb.ListArtifactsRequest{AllVersions: true}, "docs/one@2 docs/one@1 docs/two@1 src/a.go@1"},
		{&pb.ListArtifactsRequest{NamePrefix: "docs/"}, "docs/one@2 docs/two@1"},
		{&pb.ListArtifactsRequest{NamePrefix: "docs/o", AllVersions: true}, "docs/one@2 docs/one@1"},
		{&pb.ListArtifactsRequest{Agent: "b"}, "docs/two@1 src/a.go@1"},
		{&pb.ListArtifactsRequest{TaskId: "t1"}, "src/a.go@1"},
		{&pb.ListArtifactsRequest{Sha256: sumOf("1")}, "docs/one@1 docs/two@1"},
		{&pb.ListArtifactsRequest{Sha256: sumOf("1"), Agent: "a"}, "docs/one@1"},
		{&pb.ListArtifactsRequest{NamePrefix: "x"}, ""},
	} {
		for _, size := range []int32{0, 1, 2} {
			test.in.PageSize, test.in.PageToken = size, ""
			if got := strings.Join(names(a.list(test.in)), " "); got != test.want {
				t.Errorf("%v: %s, want %s", test.in, got, test.want)
			}
		}
	}
	out, err := a.ListArtifacts(a.ctx, &pb.ListArtifactsRequest{})
	must(t, err)
	if out.StoredBytes != 3 || out.StoredLimit != 64<<30 {
		t.Errorf("%d of %d bytes are stored", out.StoredBytes, out.StoredLimit)
	}
}

func TestDelete_BelongsToAuthorsDirectorsAndOperators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, lead := w.agent("a", "builder"), w.agent("b", "builder"), w.agent("lead-1", "lead")
	a.upload("x", "1")
	b.upload("x", "2")
	a.upload("x", "3")
	_, err := a.DeleteArtifact(a.ctx, &pb.DeleteArtifactRequest{Name: "x"})
	refused(t, err, codes.PermissionDenied, "NOT_THE_AUTHOR")
	_, err = a.DeleteArtifact(a.ctx, &pb.DeleteArtifactRequest{Name: "x", Version: 2})
	refused(t, err, codes.PermissionDenied, "NOT_THE_AUTHOR")
	_, err = a.DeleteArtifact(a.ctx, &pb.DeleteArtifactRequest{Name: "x", Version: 3})
	must(t, err)
	if a.content("x", 0) != "2" {
		t.Error("the version before is not the newest")
	}
	out, err := lead.DeleteArtifact(lead.ctx, &pb.DeleteArtifactRequest{Name: "x"})
	must(t, err)
	if out.Versions != 2 || out.FreedBytes != 2 {
		t.Errorf("the deletion is %v", out)
	}
	w.awaitFiles(0, 0)
	_, err = lead.DeleteArtifact(lead.ctx, &pb.DeleteArtifactRequest{Name: "x"})
	refused(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
	if v := b.upload("x", "1"); v.Version != 4 {
		t.Errorf("the number of a deleted version is used again: %d", v.Version)
	}
}

func TestUpload_AnnouncesOnRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	_, err := b.channels.SubscribeChannel(b.ctx, &pb.SubscribeChannelRequest{Channel: "event/artifact_shared"})
	must(t, err)
	a.upload("quiet", "1")
	h := header("docs/plan.md", []byte("2"))
	h.Announce, h.TaskId, h.Description = true, "t1", "the plan"
	_, err = a.try(h, []byte("2"))
	must(t, err)
	events, err := a.events.ListEvents(a.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"artifact.uploaded", "artifact_shared"}}})
	must(t, err)
	var got []string
	for _, e := range events.Events {
		got = append(got, e.Type+" "+e.Summary+" "+e.TaskId)
	}
	want := []string{"artifact.uploaded quiet version 1 ", "artifact.uploaded docs/plan.md version 1 t1", "artifact_shared docs/plan.md version 1 t1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	mail, err := b.messages.ListMessages(b.ctx, &pb.ListMessagesRequest{})
	must(t, err)
	if len(mail.Items) != 1 || !strings.Contains(mail.Items[0].GetMessage().GetPayload(), `"sha256":"`+sumOf("2")) {
		t.Errorf("the subscriber's mail is %v", mail.Items)
	}
}
