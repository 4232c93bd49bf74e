package soci

import (
	"bytes"
	"strings"
	"testing"

	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

func TestMakeRefuses(t *testing.T) {
	empty := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, 9000)...)
	small, plain := member(t, sampleTar()), sampleTar()
	sparse := tarball.Of(tarball.File("a", "", tarball.PAX("GNU.sparse.size", "100000"),
		tarball.PAX("GNU.sparse.major", "0"), tarball.PAX("GNU.sparse.minor", "1"),
		tarball.PAX("GNU.sparse.numblocks", "0"), tarball.PAX("GNU.sparse.map", "")))
	for name, c := range map[string]struct {
		blob        []byte
		compression Compression
		spanSize    int64
		why         string
	}{
		"no span size":         {small, Gzip, 0, "spans of 0 bytes"},
		"an empty layer":       {nil, Uncompressed, 1, "is empty"},
		"an empty gzip":        {nil, Gzip, 1, "EOF"},
		"zstd":                 {small, 3, 1, "no zTOC knows it"},
		"a plain tar as gzip":  {plain, Gzip, 1, "no gzip header"},
		"a gzip as plain tar":  {small, Uncompressed, 1000, "invalid tar header"},
		"a truncated layer":    {small[:1000], Gzip, 1000, "EOF"},
		"many empty blocks":    {empty, Gzip, 1, "empty blocks"},
		"bytes after the last": {append(bytes.Clone(small), 0), Gzip, 1000, "EOF"},
		"a global header":      {tarball.Of(tarball.Global("g")), Uncompressed, 1000, "no entries of type"},
		"a sparse file":        {sparse, Uncompressed, 1000, "sparse file"},
	} {
		_, err := Make(bytes.NewReader(c.blob), Options{c.compression, c.spanSize, goldenTool, tree.Limits{}, nil})
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.why)
		}
	}
}
