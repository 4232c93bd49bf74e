package registries

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const (
	// programTimeout bounds the run of a helper or plugin.
	programTimeout = 45 * time.Second
	// killDelay is how long a killed program's output is waited for.
	killDelay = 2 * time.Second
	maxOutput = 64 << 10 // bytes
	maxErrors = 4 << 10  // bytes of standard error that are kept
	maxReason = 200      // bytes of a program's error
)

// program is a program that is asked for credentials. It runs without a shell, in a process group
// of its own, with few variables of this process's environment.
type program struct {
	argv []string
	env  []string // NAME=VALUE, or NAME for a variable of this process
}

// passed are the variables of this process that every program gets.
var passed = []string{"PATH", "HOME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
	"no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// environment returns the environment of the program.
func (p *program) environment() (all []string) {
	for _, one := range append(passed, p.env...) {
		if strings.Contains(one, "=") {
			all = append(all, one)
		} else if value, ok := os.LookupEnv(one); ok {
			all = append(all, one+"="+value)
		}
	}
	return all
}

// run runs the program with an input, and returns its output. The error has the first line that the
// program has printed, without what may be a secret.
func (p *program) run(ctx context.Context, input []byte) (output []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, programTimeout,
		fmt.Errorf("it does not end within %v", programTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	stdout, stderr := &bounded{most: maxOutput, strict: true}, &bounded{most: maxErrors}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), stdout, stderr
	cmd.Env, cmd.Dir = p.environment(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("run %s: %w", p.argv[0], context.Cause(ctx))
	case stdout.isLong:
		return nil, fmt.Errorf("run %s: %w", p.argv[0], errLong)
	case err == nil:
		return stdout.kept, nil
	}
	said := stderr.kept
	if len(bytes.TrimSpace(said)) == 0 {
		said = stdout.kept
	}
	return stdout.kept, fmt.Errorf("run %s: %w: %s", p.argv[0], err, withoutSecrets(said))
}

// errLong ends a program that prints too much.
var errLong = fmt.Errorf("it prints more than %d bytes", maxOutput)

// bounded keeps the first bytes that are written. If it is strict, further bytes are an error.
type bounded struct {
	kept   []byte
	most   int
	strict bool
	isLong bool // there were further bytes
}

// Write keeps what there is room for.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - len(b.kept)
	if b.isLong = b.isLong || len(p) > room; b.isLong && b.strict {
		return 0, errLong
	}
	b.kept = append(b.kept, p[:min(len(p), room)]...)
	return len(p), nil
}

// secrets match what may be a secret in a line that a program has printed: the value after a word
// that announces one, the user part of a URL, its query, and long words of letters and digits.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[\w+/=.-]{8,}`),
	regexp.MustCompile(`(?i)((?:password|passwd|secret|token|credential|authorization|key)\w*["']?\s*[:=]\s*["']?)` +
		`[^\s"',}]+`),
	regexp.MustCompile(`(://)[^/@\s]+@`),
	regexp.MustCompile(`(\?)\S+`),
	regexp.MustCompile(`()[\w+/=-]*(?:[0-9][A-Za-z+/_=-]+|[A-Za-z+/_=-]+[0-9])[\w+/=-]{12,}`),
}

// withoutSecrets returns the first line of a text, shortened, with what may be a secret replaced.
func withoutSecrets(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(line, "?"))
	for _, s := range secrets {
		line = s.ReplaceAllString(line, "${1}…")
	}
	if len(line) > maxReason {
		line = strings.ToValidUTF8(line[:maxReason], "") + "…"
	}
	return line
}
