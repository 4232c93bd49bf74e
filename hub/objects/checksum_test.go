package objects_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"lighter/hub/objects"
)

// Objects on S3 are read without S3's checksums: the SDK would print a line about each object that
// was uploaded in parts.
func TestReadsWithoutChecksums(t *testing.T) {
	mode := "no object was read"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/bucket/packs/a" {
			fmt.Fprint(w, "<ListBucketResult></ListBucketResult>")
			return
		}
		mode = req.Header.Get("X-Amz-Checksum-Mode")
		fmt.Fprint(w, "bytes")
	}))
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "user")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	q := url.Values{"region": {"us-east-1"}, "endpoint": {server.URL}, "use_path_style": {"true"}}
	s, err := objects.Open(t.Context(), "s3://bucket?"+q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o, err := s.Open(t.Context(), "packs/a")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if b, err := io.ReadAll(o); err != nil || string(b) != "bytes" || mode != "" {
		t.Errorf("read %q (%v) with the checksum mode %q, want %q without a mode", b, err, mode, "bytes")
	}
}
