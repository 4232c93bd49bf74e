package registries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// programs is the directory with the programs of the tests: a credential helper of Docker's and a
// credential provider plugin of the kubelet's. Both are this test's program under other names.
var programs string

const (
	helperName = "docker-credential-test"
	pluginName = "test-credential-provider"
)

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case helperName, pluginName:
		os.Exit(answerAsProgram())
	}
	os.Exit(withPrograms(m.Run))
}

// withPrograms calls run with the programs on the search path.
func withPrograms(run func() int) int {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	if programs, err = os.MkdirTemp("", "registries-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(programs)
	for _, name := range []string{helperName, pluginName} {
		if err := os.Symlink(self, filepath.Join(programs, name)); err != nil {
			panic(err)
		}
	}
	err = errors.Join(os.Setenv("PATH", programs+":"+os.Getenv("PATH")), os.Setenv("HUB_SECRET", secret))
	if err != nil {
		panic(err)
	}
	return run()
}

// answerAsProgram logs how the program is called to the file that TEST_LOG names, and prints the
// file that TEST_ANSWER names. Text after a "!" goes to standard error, and the program fails.
func answerAsProgram() int {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 3
	}
	log, err := os.OpenFile(os.Getenv("TEST_LOG"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 3
	}
	defer log.Close()
	fmt.Fprintf(log, "%q %s %q\n", os.Args[1:], strings.TrimSpace(string(input)), os.Getenv("HUB_SECRET"))
	text, err := os.ReadFile(os.Getenv("TEST_ANSWER"))
	if err != nil {
		return 3
	}
	said, failed, isError := strings.Cut(string(text), "!")
	fmt.Print(said)
	if isError {
		fmt.Fprint(os.Stderr, failed)
		return 1
	}
	return 0
}

// tool is a program's answer and log.
type tool struct{ answer, log string }

func newTool(t *testing.T, answer string) *tool {
	t.Helper()
	dir := t.TempDir()
	p := &tool{filepath.Join(dir, "answer"), filepath.Join(dir, "log")}
	p.say(t, answer)
	return p
}

func (p *tool) say(t *testing.T, answer string) {
	t.Helper()
	if err := os.WriteFile(p.answer, []byte(answer), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *tool) env() []string { return []string{"TEST_ANSWER=" + p.answer, "TEST_LOG=" + p.log} }

// calls returns how the program was called, a line each.
func (p *tool) calls(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// A program that hangs or prints without an end is ended, also if its children hold its output.
func TestProgramIsBounded(t *testing.T) {
	t.Parallel()
	if _, err := (&program{argv: []string{"yes"}}).run(t.Context(), nil); !errors.Is(err, errLong) {
		t.Errorf("an endless output: error %v, want %v", err, errLong)
	}
	why := errors.New("the test ends it")
	ctx, cancel := context.WithCancelCause(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	go func() {
		for {
			if _, err := os.Stat(started); err == nil {
				cancel(why)
				return
			}
		}
	}()
	hangs := program{argv: []string{"sh", "-c", "sleep 1000 & touch $0; wait", started}}
	if _, err := hangs.run(ctx, nil); !errors.Is(err, why) {
		t.Errorf("a program that hangs: error %v, want %v", err, why)
	}
	if _, err := (&program{argv: []string{"/nowhere/x"}}).run(t.Context(), nil); err == nil ||
		!strings.Contains(err.Error(), "run /nowhere/x") {
		t.Errorf("a missing program: error %v", err)
	}
}

// The error has the first line that a program has printed, without secrets.
func TestErrorsOfProgramsHaveNoSecrets(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"no such profile: default\nat x.go:5":           "no such profile: default",
		"token expired":                                 "token expired",
		"password=hunter2 is wrong":                     "password=… is wrong",
		`{"Secret":"abc","Username":"x"}`:               `{"Secret":"…","Username":"x"}`,
		"Authorization: Bearer abcdefgh.ijk":            "Authorization: … …",
		"sent Basic dXNlcjpwYXNz":                       "sent Basic …",
		"GET https://me:pw@r.example/x?sig=ab":          "GET https://…r.example/x?…",
		"key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEX":          "key …",
		"1234567890.dkr.ecr.eu-central-1.amazonaws.com": "1234567890.dkr.ecr.eu-central-1.amazonaws.com",
		"a\x1b[31mb": "a [31mb", "": "",
	} {
		if got := withoutSecrets([]byte(said)); got != want {
			t.Errorf("%q: got %q, want %q", said, got, want)
		}
	}
	if got := withoutSecrets([]byte(strings.Repeat("ä ", 1000))); len(got) > maxReason+len("…") {
		t.Errorf("a long line: got %d bytes", len(got))
	}
}
