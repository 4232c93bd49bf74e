package registry

import (
	"errors"
	"io"
	"log/slog"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/sirupsen/logrus"
)

// known returns ErrNotFound for the errors by which the library says that something does not exist.
func known(err error) error {
	var (
		tag        distribution.ErrTagUnknown
		repository distribution.ErrRepositoryUnknown
		revision   distribution.ErrManifestUnknownRevision
		manifest   distribution.ErrManifestUnknown
		path       driver.PathNotFoundError
	)
	if errors.Is(err, distribution.ErrBlobUnknown) || errors.As(err, &tag) || errors.As(err, &repository) ||
		errors.As(err, &revision) || errors.As(err, &manifest) || errors.As(err, &path) {
		return ErrNotFound
	}
	return err
}

// routeLogs sends the library's error messages to log at debug level: clients' mistakes are errors,
// too. Their fields are dropped, as they hold upload tokens and clients' headers. The library has
// one logger for the process.
func routeLogs(log *slog.Logger) {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.ErrorLevel)
	logrus.StandardLogger().ReplaceHooks(logrus.LevelHooks{logrus.ErrorLevel: {&hook{log}}})
}

type hook struct{ log *slog.Logger }

func (h *hook) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

func (h *hook) Fire(entry *logrus.Entry) error {
	h.log.Debug("registry library", "message", entry.Message)
	return nil
}
