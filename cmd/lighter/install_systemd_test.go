package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lighter/node"
)

// The answer about direct is a list of patterns, and no answer is none.
func TestAskDirect(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		in   io.Reader
		want []string
		err  error
	}{
		{strings.NewReader("\n"), nil, nil},
		{strings.NewReader(""), nil, nil},
		{strings.NewReader(" \t\r\n"), nil, nil},
		{strings.NewReader("reg.example.org/physics/**\n"), []string{"reg.example.org/physics/**"}, nil},
		{strings.NewReader(" a.example/**, b.example/x,c.example/*  d.example/y\nnot read\n"),
			[]string{"a.example/**", "b.example/x", "c.example/*", "d.example/y"}, nil},
		{strings.NewReader("a.example/** without a newline"), []string{"a.example/**", "without", "a", "newline"}, nil},
		{io.MultiReader(strings.NewReader("a.example/**"), brokenReader{broken}), nil, broken},
	} {
		var out strings.Builder
		got, err := askDirect(t.Context(), c.in, &out)
		if !slices.Equal(got, c.want) || !errors.Is(err, c.err) {
			t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
		}
		if !strings.Contains(out.String(), "Example: reg.example.org/") || strings.HasSuffix(out.String(), "\n") {
			t.Errorf("asked %q, want an example, and that the answer is on the last line", &out)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	waiting, never := io.Pipe()
	defer never.Close()
	if got, err := askDirect(ctx, waiting, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %q, %v", got, err)
	}
}

type brokenReader struct{ err error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.err }

// terminal makes a pseudo terminal the standard input and standard error until the test ends, and
// returns its other end.
func terminal(t *testing.T) *os.File {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	n, ptnErr := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, ptnErr); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	in, errs := os.Stdin, os.Stderr
	os.Stdin, os.Stderr = file, file
	t.Cleanup(func() {
		os.Stdin, os.Stderr = in, errs
		_, _ = file.Close(), user.Close()
	})
	return user
}

// A user at a terminal is asked. Otherwise nobody is, and the report says that there is no such
// repository. A wrong pattern is refused as one of --direct is.
func TestDirectIsAskedFor(t *testing.T) {
	complete := func(args ...string) (node.Config, string, error) {
		config := node.DefaultConfig()
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.Flags().Bool("json", false, "")
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		note, err := completeDirect(cmd, &config)
		return config, note, err
	}
	if c, note, err := complete(); err != nil || len(c.Direct) > 0 || !strings.HasPrefix(note, "direct is empty: ") {
		t.Errorf("without a terminal: direct %q, note %q, %v", c.Direct, note, err)
	}
	user := terminal(t)
	if c, note, err := complete("--json"); err != nil || len(c.Direct) > 0 || note == "" {
		t.Errorf("with --json: direct %q, note %q, %v", c.Direct, note, err)
	}
	for answer, want := range map[string]string{"\n": "", "reg.example.org/a/**\n": "reg.example.org/a/**"} {
		if _, err := user.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		c, note, err := complete()
		if err != nil || strings.Join(c.Direct, " ") != want || (note == "") != (want != "") {
			t.Errorf("answer %q: direct %q, note %q, %v", answer, c.Direct, note, err)
		}
		for lines := bufio.NewReader(user); ; { // with the echo of the answer
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, "Which repositories") {
				break
			}
		}
	}
	if _, err := user.WriteString("reg.example.org\n"); err != nil {
		t.Fatal(err)
	}
	c, _, err := complete()
	if err == nil {
		err = c.Check()
	}
	if err == nil || !strings.Contains(err.Error(), `"reg.example.org" matches no repository`) {
		t.Errorf("a wrong pattern: %v", err)
	}
}
