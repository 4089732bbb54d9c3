package artifacts_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func reference(v *pb.ArtifactVersion) string {
	return fmt.Sprintf("%s@%d", v.GetName(), v.GetVersion())
}

func TestUpload_AddsVersionsThatNeverChange(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("builder-1", "builder")
	h := header("architecture/api.yaml", []byte("one"))
	h.MediaType, h.Description, h.TaskId, h.Labels = "application/yaml", "the API", "t1", map[string]string{"stage": "draft"}
	out, err := try(a, h, []byte("one"))
	apptest.NoError(t, err)
	first := out.Artifact
	want := &pb.ArtifactVersion{
		Name: "architecture/api.yaml", Version: 1, Revision: first.Revision, Size: 3, Sha256: sumOf("one"), MediaType: "application/yaml",
		Description: "the API", Labels: map[string]string{"stage": "draft"}, TaskId: "t1", Author: "builder-1", CreatedAt: first.CreatedAt, Newest: true,
	}
	if diff := cmp.Diff(want, first, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	second := upload(a, "architecture/api.yaml", "two")
	if second.Version != 2 || !second.Newest {
		t.Errorf("the second upload is %v", second)
	}
	if got := contentOf(a, "architecture/api.yaml", 1) + contentOf(a, "architecture/api.yaml", 2) + contentOf(a, "architecture/api.yaml", 0); got != "onetwotwo" {
		t.Errorf("the contents are %q", got)
	}
	got := apptest.Must(t, a.GetArtifact, &pb.GetArtifactRequest{Name: "architecture/api.yaml", Version: 1})
	first.Newest, first.ReplacedAt = false, second.CreatedAt
	if diff := cmp.Diff([]*pb.ArtifactVersion{second, first}, got.Versions, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(first, got.Artifact, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	w.Restart()
	if got := contentOf(a, "architecture/api.yaml", 1); got != "one" {
		t.Errorf("after a restart the content is %q", got)
	}
}

func TestUpload_SameContentIsStoredOnceAndSkippedByItsHash(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	content := strings.Repeat("x", 300_000)
	upload(a, "one", content)
	again, err := try(a, header("one", []byte(content)), []byte(content))
	apptest.NoError(t, err)
	if !again.Unchanged || again.Artifact.Version != 1 {
		t.Errorf("the same content again is %v", again)
	}
	upload(b, "two", content)
	h := &pb.ArtifactHeader{Name: "three", Size: int64(len(content)), Sha256: strings.ToUpper(sumOf(content))}
	out, err := try(b, h, nil) // no content at all
	apptest.NoError(t, err)
	if !out.Skipped || out.Artifact.Version != 1 || contentOf(b, "three", 0) != content {
		t.Errorf("the upload by hash is %v", out)
	}
	if files := files(w); len(files) != 1 || files[0] != sumOf(content) {
		t.Errorf("the folder has %v", files)
	}
	// Another session has its own contents: a hash alone is no access.
	other := w.Session("other", nil)
	_, err = try(other, &pb.ArtifactHeader{Name: "x", Size: int64(len(content)), Sha256: sumOf(content)}, nil)
	apptest.Refused(t, err, codes.InvalidArgument, "SIZE_MISMATCH")
	_, _, err = download(other, &pb.DownloadArtifactRequest{Sha256: sumOf(content)})
	apptest.Refused(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
	upload(other, "x", content)
	if files := files(w); len(files) != 1 {
		t.Errorf("the folder has %v", files)
	}
	// One deletion does not take the file from the other session.
	apptest.Must(t, w.Root().DeleteArtifact, &pb.DeleteArtifactRequest{Name: "one"})
	for _, name := range []string{"two", "three"} {
		apptest.Must(t, w.Root().DeleteArtifact, &pb.DeleteArtifactRequest{Name: name})
	}
	if contentOf(other, "x", 0) != content {
		t.Error("the other session has lost its content")
	}
	deleted := apptest.Must(t, other.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x"})
	if deleted.Versions != 1 || deleted.FreedBytes != int64(len(content)) {
		t.Errorf("the deletion is %v", deleted)
	}
	awaitFiles(w, 0, 0)
}

func TestUpload_MustBeWhatTheHeaderAnnounces(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "builder")
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
			stream, err := a.UploadArtifact(a.Ctx)
			apptest.NoError(t, err)
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
			apptest.Refused(t, err, codes.InvalidArgument, test.reason)
		})
	}
	awaitFiles(w, 0, 0)
	if list := list(a, &pb.ListArtifactsRequest{}); len(list) > 0 {
		t.Errorf("refused uploads leave %v", list)
	}
	if v := upload(a, "empty", ""); v.Size != 0 || contentOf(a, "empty", 0) != "" {
		t.Errorf("an empty artifact is %v", v)
	}
}

func TestUpload_NamesAreRelativePaths(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "builder")
	for _, name := range []string{
		"", "/etc/passwd", "../x", "a/../b", "./a", "a//b", `a\b`, "a\x00b", "a\nb", "a\u200bb", "a\u202eb", "a/", "a.", "a /b", "C:/x",
		"*.go", "a?b", "a@3", strings.Repeat("a", 1025), "a\xff",
	} {
		stream, err := a.UploadArtifact(a.Ctx)
		apptest.NoError(t, err)
		if err := stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: &pb.ArtifactHeader{Name: name}}}); err != nil {
			continue // the client itself refuses text that is not UTF-8
		}
		if _, err := stream.CloseAndRecv(); err == nil {
			t.Errorf("the name %q is accepted", name)
		} else {
			apptest.Refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
		}
	}
	for raw, stored := range map[string]string{
		"a": "a", "src/ä.go": "src/ä.go", "a\u0308": "ä", "a@b": "a@b", "a@0": "a@0", ".hidden": ".hidden", "東京/計画.md": "東京/計画.md",
	} {
		if v := upload(a, raw, raw); v.Name != stored || contentOf(a, raw, 0) != raw {
			t.Errorf("%q is stored as %q", raw, v.Name)
		}
	}
	_, err := a.GetArtifact(a.Ctx, &pb.GetArtifactRequest{Name: "src/a.go"})
	apptest.Refused(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
	if !strings.Contains(err.Error(), "did you mean src/ä.go?") {
		t.Errorf("no near name in %v", err)
	}
}

func TestUpload_RepeatedRequestAddsOneVersion(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "builder")
	h := header("x", []byte("one"))
	h.RequestId = uuid.NewString()
	first, err := try(a, h, []byte("one"))
	apptest.NoError(t, err)
	upload(a, "x", "two")
	again, err := try(a, h, []byte("one"))
	apptest.NoError(t, err)
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	_, err = try(a, h, []byte("six"))
	apptest.Refused(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	if got := names(list(a, &pb.ListArtifactsRequest{AllVersions: true})); cmp.Diff([]string{"x@2", "x@1"}, got) != "" {
		t.Errorf("the versions are %v", got)
	}
}

func TestDownload_SendsPartsFromAnOffset(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "builder")
	content := strings.Repeat("0123456789", 20_000)
	upload(a, "x", content)
	for _, part := range []struct{ offset, length, end int64 }{
		{0, 0, 200_000}, {150_003, 0, 200_000}, {5, 10, 15}, {199_999, 100, 200_000}, {200_000, 0, 200_000}, {0, 70_000, 70_000},
	} {
		_, got, err := download(a, &pb.DownloadArtifactRequest{Name: "x", Offset: part.offset, Length: part.length})
		if err != nil || string(got) != content[part.offset:part.end] {
			t.Errorf("%v: %d bytes, %v", part, len(got), err)
		}
	}
	_, _, err := download(a, &pb.DownloadArtifactRequest{Name: "x", Offset: 200_001})
	apptest.Refused(t, err, codes.OutOfRange, "OFFSET_TOO_LARGE")
	_, _, err = download(a, &pb.DownloadArtifactRequest{Name: "x", Version: 2})
	apptest.Refused(t, err, codes.NotFound, "VERSION_NOT_FOUND")
	_, _, err = download(a, &pb.DownloadArtifactRequest{Name: "x", Sha256: sumOf(content)})
	apptest.Refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	v, got, err := download(a, &pb.DownloadArtifactRequest{Sha256: sumOf(content)})
	if err != nil || v.GetName() != "x" || string(got) != content {
		t.Errorf("by hash: %v, %d bytes, %v", v, len(got), err)
	}
	lose(w, sumOf(content))
	_, _, err = download(a, &pb.DownloadArtifactRequest{Name: "x"})
	apptest.Refused(t, err, codes.FailedPrecondition, "CONTENT_MISSING")
	upload(a, "x", content) // the same content again restores the file
	if contentOf(a, "x", 0) != content {
		t.Error("the content was not restored")
	}
}

func TestList_SelectsByPrefixAgentTaskAndHash(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	upload(a, "docs/one", "1")
	upload(a, "docs/one", "2")
	upload(b, "docs/two", "1")
	h := header("src/a.go", []byte("3"))
	h.TaskId = "t1"
	_, err := try(b, h, []byte("3"))
	apptest.NoError(t, err)
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
			if got := strings.Join(names(list(a, test.in)), " "); got != test.want {
				t.Errorf("%v: %s, want %s", test.in, got, test.want)
			}
		}
	}
	out := apptest.Must(t, a.ListArtifacts, &pb.ListArtifactsRequest{})
	if out.StoredBytes != 3 || out.StoredLimit != 64<<30 {
		t.Errorf("%d of %d bytes are stored", out.StoredBytes, out.StoredLimit)
	}
}

func TestDelete_BelongsToAuthorsDirectorsAndOperators(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b, lead := w.Agent("a", "builder"), w.Agent("b", "builder"), w.Agent("lead-1", "lead")
	upload(a, "x", "1")
	upload(b, "x", "2")
	upload(a, "x", "3")
	apptest.Refuses(t, a.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x"}, codes.PermissionDenied, "NOT_THE_AUTHOR")
	apptest.Refuses(t, a.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x", Version: 2},
		codes.PermissionDenied, "NOT_THE_AUTHOR")
	apptest.Must(t, a.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x", Version: 3})
	if contentOf(a, "x", 0) != "2" {
		t.Error("the version before is not the newest")
	}
	out := apptest.Must(t, lead.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x"})
	if out.Versions != 2 || out.FreedBytes != 2 {
		t.Errorf("the deletion is %v", out)
	}
	awaitFiles(w, 0, 0)
	apptest.Refuses(t, lead.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x"}, codes.NotFound, "ARTIFACT_NOT_FOUND")
	if v := upload(b, "x", "1"); v.Version != 4 {
		t.Errorf("the number of a deleted version is used again: %d", v.Version)
	}
}

func TestUpload_AnnouncesOnRequest(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	apptest.Must(t, b.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "event/artifact_shared"})
	upload(a, "quiet", "1")
	h := header("docs/plan.md", []byte("2"))
	h.Announce, h.TaskId, h.Description = true, "t1", "the plan"
	_, err := try(a, h, []byte("2"))
	apptest.NoError(t, err)
	var got []string
	for _, e := range a.Events("artifact.uploaded", "artifact_shared") {
		got = append(got, e.Type+" "+e.Summary+" "+e.TaskId)
	}
	want := []string{"artifact.uploaded quiet version 1 ", "artifact.uploaded docs/plan.md version 1 t1", "artifact_shared docs/plan.md version 1 t1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	mail := apptest.Must(t, b.ListMessages, &pb.ListMessagesRequest{})
	if len(mail.Items) != 1 || !strings.Contains(mail.Items[0].GetMessage().GetPayload(), `"sha256":"`+sumOf("2")) {
		t.Errorf("the subscriber's mail is %v", mail.Items)
	}
}
