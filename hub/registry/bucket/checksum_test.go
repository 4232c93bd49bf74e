package bucket

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// Files on S3 are read without S3's checksums: the SDK would print a line about each file that was
// uploaded in parts.
func TestReadsWithoutChecksums(t *testing.T) {
	mode := "no file was read"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mode = req.Header.Get("X-Amz-Checksum-Mode")
		fmt.Fprint(w, "bytes")
	}))
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "user")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	q := url.Values{"region": {"us-east-1"}, "endpoint": {server.URL}, "use_path_style": {"true"}}
	d, err := opener{}.Create(t.Context(), map[string]any{"url": "s3://bucket?" + q.Encode()})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := d.GetContent(t.Context(), "/a"); err != nil || string(b) != "bytes" || mode != "" {
		t.Errorf("read %q (%v) with the checksum mode %q, want %q without a mode", b, err, mode, "bytes")
	}
}
