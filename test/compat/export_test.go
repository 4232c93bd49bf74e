package compat

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/hub"
	"lighter/test/testkit/example"
	"lighter/wire"
)

// exportedManifest is a file that the mirror of an earlier hub had.
const exportedManifest = wire.Prefix + "/default/manifests/" +
	"sha256:b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"

// TestExportState continues the mirror of an earlier hub, which noted what the mirror has: it keeps
// its ID as a holder, and a file that no image needs any more is removed.
func TestExportState(t *testing.T) {
	const holder = "LLM4PQKUGQQ6XRPXDTTZZOQZSK"
	written := example.Stored(t, "export-1.json", func() []byte {
		return []byte(`{"Version":1,"Holder":"` + holder + `","Checked":"2026-11-29T22:27:31.027260431Z","Files":{"` +
			exportedManifest + `":"eba771519bf43d8103421ca69f8cbced"}}` + "\n")
	})
	dir := t.TempDir()
	state, old := filepath.Join(dir, ".export/default"), filepath.Join(dir, exportedManifest)
	for file, text := range map[string][]byte{state: written, old: []byte("{}")} {
		noError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		noError(t, os.WriteFile(file, text, 0o644))
	}
	url, _ := startHub(t, t.TempDir(), func(c *hub.Config) { c.Export.To = dir })
	push(t, url, imageName, layers...)
	until(t, "the old file's removal", func() bool {
		_, err := os.Stat(old)
		return os.IsNotExist(err)
	})
	until(t, "a state without it", func() bool {
		b, err := os.ReadFile(state)
		return err == nil && bytes.Contains(b, []byte(holder)) && !strings.Contains(string(b), exportedManifest)
	})
}
