package hub_test

import (
	"net/http"
	"strings"
	"testing"
)

// The hub keeps promises of docs/wire.md that no other test checks.
func TestWirePage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	got := h.pushReady("a:1", image(lowerTar, upperTar))
	list := files(t, objectsDir(h.config))
	unit := base + "/" + firstWith(list, "packs/") + "/0"
	for path, want := range map[string]string{
		unit:                            "public, max-age=31536000, immutable",
		base + "/indexes/" + got.Tree:   "public, max-age=31536000, immutable",
		base + "/locations/" + got.Tree: "public, max-age=60",
		base + "/key":                   "no-cache",
		base + "/images":                "no-cache",
		base + "/chains/" + got.Chain:   "max-age=5",
	} {
		status, body, header := h.do("GET", path, nil)
		if status != http.StatusOK || header.Get("Cache-Control") != want {
			t.Errorf("%s: %d, %s, want 200 with Cache-Control %q", path, status, header, want)
		}
		if status, none, head := h.do("HEAD", path, nil); status != http.StatusOK || len(none) != 0 ||
			head.Get("Content-Length") != header.Get("Content-Length") {
			t.Errorf("HEAD %s: %d, %d bytes, %s, want the header of GET only", path, status, len(none), head)
		}
		tag := header.Get("ETag")
		if (tag != "") != strings.Contains(want, "public") {
			t.Errorf("%s has the ETag %q, want one only for public answers", path, tag)
		}
		if tag != "" {
			if status, _, _ := h.do("GET", path, nil, "If-None-Match", tag); status != http.StatusNotModified {
				t.Errorf("%s with its tag: %d, want 304", path, status)
			}
			if status, _, _ := h.do("GET", path, nil, "If-None-Match", tag, "Cache-Control",
				"no-cache"); status != http.StatusOK {
				t.Errorf("%s with its tag and no-cache: %d, want 200", path, status)
			}
			if status, whole, _ := h.do("GET", path, nil, "Range", "bytes=0-9"); status != http.StatusOK ||
				len(whole) != len(body) {
				t.Errorf("a range of %s: %d, %d bytes, want 200 and all bytes", path, status, len(whole))
			}
		}
	}
	h.pushReady("b:1", image(lowerTar))
	_, all, _ := h.do("GET", base+"/images", nil)
	if _, empty, _ := h.do("GET", base+"/images?name=", nil); string(empty) != string(all) {
		t.Errorf("the list with an empty name is %s, want that without a name, %s", empty, all)
	}
	long := `{"name":"` + strings.Repeat("a", 64<<10) + `"}`
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", base + "/images?name=not/there:1", "", 200},
		{"GET", base + "/images/inspect?name=not/there:1", "", 404},
		{"GET", base + "/images/inspect", "", 400},
		{"DELETE", base + "/images", "", 400},
		{"DELETE", base + "/images?name=not/there:1", "", 404},
		{"POST", base + "/images/verify?name=not/there:1", "", 404},
		{"POST", base + "/images", `{"name":"not/there:1","ofANewerClient":{"a":1}}`, 404},
		{"POST", base + "/images", `{"name":"A"}`, 400},
		{"POST", base + "/images", long, 413},
		{"POST", base + "/traces/" + got.Tree, `{"reads":[[0,0,4096],[5,4096,8192]]}`, 204},
		{"POST", base + "/traces/" + got.Tree, `{"reads":[]}`, 204},
		{"POST", base + "/traces/" + got.Tree, `{"reads":[[0,0,1099511627776]]}`, 400}, // beyond the device
		{"POST", base + "/traces/" + got.Tree, `{"reads":[[9,0,4096],[5,4096,8192]]}`, 400},
		{"POST", base + "/traces/" + got.Tree, "{", 400},
		{"POST", base + "/traces/" + got.Tree, strings.Repeat(" ", 1<<20+1), 413},
		{"POST", base + "/traces/" + strings.Repeat("ab", 32), `{"reads":[[0,0,4096]]}`, 404},
		{"POST", base + "/traces/short", `{"reads":[[0,0,4096]]}`, 400},
		{"GET", base + "/traces/" + got.Tree, "", 404},
		{"POST", base + "/images", `{"source":"docker://127.0.0.1:1/a"}`, 502},
		{"PUT", base + "/images", "", 404},
		{"GET", "/lighter/1/other/images", "", 404},
		{"GET", "/lighter/2/default/images", "", 404},
		{"GET", base + "/packs/short/0", "", 400},
		{"GET", unit + "0", "", 400},
		{"GET", strings.TrimSuffix(unit, "0") + "99", "", 404},
		{"GET", base + "/trees/sha256:0", "", 404},
	} {
		status, body, header := h.do(c.method, c.path, []byte(c.body))
		if status != c.status || status >= 400 && (!strings.HasPrefix(string(body), `{"error":"`) ||
			header.Get("Cache-Control") != "no-store") {
			t.Errorf("%s %s: %d, %.200s, want %d", c.method, c.path, status, body, c.status)
		}
	}
	if status, _, header := h.do("POST", base+"/images", []byte(`{"name":"a:1"}`)); status != 200 ||
		header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("stream of progress: %d, %s, want 200 and application/x-ndjson", status, header)
	}
	if status, body, _ := h.do("DELETE", base+"/images?name=a:1", nil); status != http.StatusNoContent ||
		len(body) != 0 {
		t.Errorf("delete: %d, %s, want 204", status, body)
	}
}
