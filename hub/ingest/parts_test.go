package ingest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
)

func TestReadAheadGivesAllBytesAndTheError(t *testing.T) {
	whole := bytes.Repeat([]byte("0123456789"), 300_000)
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		from io.Reader
		want error
	}{
		"whole":  {bytes.NewReader(whole), nil},
		"pieces": {iotest.HalfReader(bytes.NewReader(whole)), nil},
		"at end": {iotest.DataErrReader(bytes.NewReader(whole)), nil},
		"broken": {io.MultiReader(bytes.NewReader(whole), iotest.ErrReader(broken)), broken},
	} {
		var taken []byte
		r := newReadAhead(t.Context(), func(b []byte) { taken = append(taken, b...) })
		filled := make(chan error, 1)
		go func() { filled <- r.fill(c.from) }()
		got, err := io.ReadAll(r)
		if err != c.want || !bytes.Equal(got, whole) || !bytes.Equal(taken, whole) {
			t.Errorf("%s: %d bytes, %d taken, %v", name, len(got), len(taken), err)
		}
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: it goes on behind its end", name)
		}
		if err := <-filled; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadAheadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := newReadAhead(ctx, nil)
	filled := make(chan error, 1)
	go func() { filled <- r.fill(strings.NewReader(strings.Repeat("x", 10*readAheadBlocks*readAheadBlock))) }()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-filled; !errors.Is(err, context.Canceled) {
		t.Errorf("fill: %v", err)
	}
	if _, err := newReadAhead(ctx, nil).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}

type answering struct{}

func (answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestPlainHTTPHasToBeAllowed(t *testing.T) {
	for url, want := range map[string]bool{
		"http://localhost:5000/v2/": true, "http://127.0.0.1/v2/": true, "http://[::1]:1/": true, "https://reg.example/": true,
		"http://reg.example/v2/": false, "http://10.0.0.1:5000/": false, "http://192.168.1.1/": false, "http://localhost.example/": false, "http://reg.local/": false,
	} {
		for _, told := range []bool{false, true} {
			req, err := http.NewRequest(http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := (&outward{plainHTTP: told, next: answering{}}).RoundTrip(req); (err == nil) != (want || told) {
				t.Errorf("%s, told %v: %v", url, told, err)
			}
		}
	}
}

func TestSourcesAreReadAsSkopeoDoes(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for text, want := range map[string]string{
		"docker://alpine":                             "docker.io/library/alpine:latest",
		"docker://rootproject/root:6":                 "docker.io/rootproject/root:6",
		"docker://reg.example:5000/a/b":               "reg.example:5000/a/b:latest",
		"docker://localhost/a@" + digest:              "localhost/a@" + digest,
		"docker://registry.example/a/b:1@" + digest:   "registry.example/a/b:1@" + digest,
		"reg.example/a":                               "",
		"oci:/a":                                      "",
		"docker://reg.example/UPPER":                  "",
		"docker://reg.example/a:" + "tag with blanks": "",
	} {
		_, got, err := parseSource(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestPlatformsMatch(t *testing.T) {
	for _, c := range []struct {
		platform, wanted string
		want             bool
	}{
		{"linux/amd64", "linux/amd64", true}, {"linux/arm64/v8", "linux/arm64", true}, {"linux/arm64", "linux/arm64/v8", true},
		{"linux/arm/v7", "linux/arm", true}, {"linux/arm/v6", "linux/arm", false}, {"linux/amd64/v3", "linux/amd64", false}, {"", "linux/amd64", true},
		{"linux/amd64", "linux/arm64", false}, {"windows/amd64", "linux/amd64", false}, {"linux/arm/v6", "linux/arm/v7", false},
		{"linux/arm64", "linux/arm", false}, {unknownPlatform, "linux/amd64", false},
	} {
		if got := matches(c.platform, []string{"plan9/mips", c.wanted}); got != c.want {
			t.Errorf("%q for %q: %v", c.platform, c.wanted, got)
		}
	}
}

// Whatever comes as manifest and config, it is an image or an error.
func FuzzParseImage(f *testing.F) {
	f.Add(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:`+strings.Repeat("a", 64)+`","size":2},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:`+strings.Repeat("b", 64)+`","size":1}]}`,
		`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:`+strings.Repeat("c", 64)+`"]}}`)
	f.Fuzz(func(t *testing.T, manifest, config string) {
		m, err := parseManifest(registry.Manifest{MediaType: v1.MediaTypeImageManifest, Bytes: []byte(manifest)})
		if err != nil {
			return
		}
		i, err := parseImage(m, []byte(config))
		if err != nil {
			return
		}
		if len(i.layers) == 0 || len(i.layers) > maxLayers || i.size() < 0 {
			t.Errorf("%d layers, %d bytes", len(i.layers), i.size())
		}
		for _, l := range i.layers {
			if len(l.DiffID) != 71 || len(l.Digest) != 71 || l.Chain == "" {
				t.Errorf("layer %+v", l)
			}
		}
	})
}
