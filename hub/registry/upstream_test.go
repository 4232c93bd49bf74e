package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// failing is another registry that has all layers, and cannot be reached.
type failing struct{ err error }

func (f failing) Known(context.Context, string, string) (int64, error) { return 5, nil }
func (f failing) Stat(context.Context, string, string) (int64, error)  { return 0, f.err }
func (f failing) Open(context.Context, string, string) (Blob, error)   { return nil, f.err }

// The signature of a presigned URL gives access to a layer. Neither clients nor the log see it.
func TestSignaturesOfUpstreamsAreSecret(t *testing.T) {
	var log bytes.Buffer
	failed := &url.Error{Op: "Get", URL: "https://user:5ec3e7@s3.example.org/b/x?X-Amz-Signature=5ec3e7",
		Err: errors.New("refused")}
	r, err := Open(t.Context(), Dir(t.TempDir()), failing{fmt.Errorf("%w: %w", ErrUnavailable, failed)}, nil, nil,
		slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.Handler(&events{}))
	defer server.Close()
	res, err := http.Get(server.URL + "/v2/a/blobs/" + digest.FromString("layer").String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %s, %v, want 503", res.Status, err)
	}
	for name, text := range map[string]string{"answer": string(body), "log": log.String()} {
		if strings.Contains(text, "5ec3e7") || !strings.Contains(text, "s3.example.org") {
			t.Errorf("the %s is %s, want the server without the secrets", name, text)
		}
	}
}
