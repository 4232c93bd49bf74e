package command_test

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/test/testkit/printed"
)

// An error decides about the exit code if it says so, also if the arguments were wrong.
func TestExitCodes(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		err     error
		code    int
		printed string
	}{
		"success":         {nil, 0, ""},
		"a failure":       {failed, command.ExitFailed, "program: failed\n"},
		"wrong arguments": {command.Usage(failed), command.ExitUsage, "program: failed\n"},
		"a code":          {command.Code(125, failed), 125, "program: failed\n"},
		"a code of usage": {command.Code(125, command.Usage(failed)), 125, "program: failed\n"},
		"a silent code":   {command.Code(7, command.ErrReported), 7, ""},
	} {
		cmd := &cobra.Command{Use: "program", RunE: func(*cobra.Command, []string) error { return c.err }}
		code := 0
		_, text := printed.By(t, func() {
			code = command.Run(t.Context(), cmd, nil, func(error) int { return command.ExitFailed })
		})
		if code != c.code || text != c.printed {
			t.Errorf("%s: exit code %d, printed %q; want %d, %q", name, code, text, c.code, c.printed)
		}
	}
}
