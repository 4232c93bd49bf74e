package startup

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// The result can be decoded, whatever the zstd program does, and also without the program.
func TestBestEncoder(t *testing.T) {
	content := []byte(strings.Repeat("what compresses, the better the more is tried; ", 10_000))
	path := os.Getenv("PATH")
	programs := map[string]struct{ script, err string }{
		"none":            {},
		"fails":           {"#!/bin/sh\necho it is broken >&2\nexit 1", "exit status 1: it is broken"},
		"writes nonsense": {"#!/bin/sh\necho nonsense", "decode the output: "},
		"other content": {"#!/bin/sh\necho other content | PATH=" + path + " zstd --stdout",
			"the output decodes to other bytes"},
		"writes nothing":  {"#!/bin/sh\n", "the output decodes to other bytes"},
		"writes too much": {"#!/bin/sh\nPATH=" + path + " exec cat /dev/zero", ""},
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			script := program.script
			if _, err := exec.LookPath(zstdProgram); name == "other content" && err != nil {
				t.Fatal("this test needs the zstd program")
			}
			dir := t.TempDir()
			if script != "" {
				if err := os.WriteFile(filepath.Join(dir, zstdProgram), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir)
			var log bytes.Buffer
			got := encodeBest(t, &log, content)
			if warned := strings.Contains(log.String(), "zstd program failed"); warned != (script != "") {
				t.Errorf("logged a warning: %v, want %v: %s", warned, script != "", log.String())
			}
			if !strings.Contains(log.String(), program.err) || strings.Contains(log.String(), "nil") {
				t.Errorf("logged %s, want %q", log.String(), program.err)
			}
			if len(got) > len(content)/10 {
				t.Errorf("%d bytes are compressed to %d, want less than a tenth", len(content), len(got))
			}
		})
	}
}

// encodeBest compresses the content and decodes it again.
func encodeBest(t *testing.T, log *bytes.Buffer, content []byte) []byte {
	t.Helper()
	p := newBestEncoder(slog.New(slog.NewTextHandler(log, nil)))
	defer p.close()
	got, err := p.encode(t.Context(), []byte("before"), content)
	if err != nil || string(got[:6]) != "before" {
		t.Fatalf("got %q..., error %v, want the frame after \"before\"", got[:min(len(got), 10)], err)
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if plain, err := d.DecodeAll(got[6:], nil); err != nil || !bytes.Equal(plain, content) {
		t.Errorf("decoded %d bytes, error %v, want the %d bytes of the content", len(plain), err, len(content))
	}
	return got[6:]
}

// The program compresses better than the library. A cancelled call is no failure of the program.
func TestBestEncoderWithProgram(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	content := self[:256<<10]
	var log bytes.Buffer
	p := newBestEncoder(slog.New(slog.NewTextHandler(&log, nil)))
	defer p.close()
	if p.program == "" {
		t.Fatal("this test needs the zstd program")
	}
	library := p.library.EncodeAll(content, nil)
	if program := encodeBest(t, &log, content); len(program) >= len(library) || log.Len() > 0 {
		t.Errorf("%d bytes with the program, %d with the library, want less and no warning; logged %q", len(program),
			len(library), log.String())
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.encode(gone, nil, content); err == nil || log.Len() > 0 {
		t.Errorf("with a cancelled context: error %v, logged %q, want an error and no warning", err, log.String())
	}
}
