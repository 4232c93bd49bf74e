package apptainer

import (
	"regexp"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// isVariable matches the names of variables that a shell can set.
var isVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// sourceEnvironment sets the variables of an image, for versions that do not do this by themselves.
const sourceEnvironment = `for script in /.singularity.d/env/*.sh; do
	[ ! -f "$script" ] || . "$script"
done
`

// scriptsOf returns the scripts below .singularity.d, by their paths.
func scriptsOf(config *v1.ImageConfig) map[string]string {
	action := func(command string) string { return "#!/bin/sh\n" + sourceEnvironment + command + "\n" }
	return map[string]string{
		"env/10-docker2singularity.sh": environment(config.Env),
		"env/90-environment.sh":        "#!/bin/sh\n",
		"runscript":                    runscript(config.Entrypoint, config.Cmd),
		"startscript":                  "#!/bin/sh\n",
		"test":                         "#!/bin/sh\n",
		"actions/exec":                 action(`exec "$@"`),
		"actions/run":                  action(`exec /.singularity.d/runscript "$@"`),
		"actions/start":                action(`exec /.singularity.d/startscript "$@"`),
		"actions/test":                 action(`exec /.singularity.d/test "$@"`),
		"actions/shell":                action(`[ ! -x /bin/bash ] || exec /bin/bash --norc "$@"` + "\n" + `exec /bin/sh "$@"`),
	}
}

// environment returns a script that sets an image's variables (NAME=VALUE). The caller's variables
// win, except PATH: the machine's PATH does not suit the image.
func environment(variables []string) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		if !isVariable.MatchString(name) {
			continue
		}
		if name != "PATH" {
			b.WriteString(`[ -n "${` + name + `:-}" ] || `)
		}
		b.WriteString("export " + name + "=" + quote(value) + "\n")
	}
	return b.String()
}

// runscript returns a script that runs an image's entry point with the script's arguments, or with
// the image's command if there are none. An image with neither starts a shell.
func runscript(entrypoint, command []string) string {
	if len(entrypoint) == 0 && len(command) == 0 {
		command = []string{"/bin/sh"}
	}
	script := "#!/bin/sh\n"
	if len(command) > 0 {
		script += "[ $# -gt 0 ] || set --" + quoted(command) + "\n"
	}
	return script + "exec" + quoted(entrypoint) + ` "$@"` + "\n"
}

// quoted returns words of a shell's command line, each after a space.
func quoted(words []string) string {
	var b strings.Builder
	for _, word := range words {
		b.WriteString(" " + quote(word))
	}
	return b.String()
}

// quote returns text as one word of a shell's command line.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// labelsOf returns an image's labels.
func labelsOf(config *v1.ImageConfig) map[string]string {
	if config.Labels == nil {
		return map[string]string{}
	}
	return config.Labels
}
