package work

import "brokerd/internal/finding"

// Findings explains the items that concern a question, at most most of them. Without a subject, it leaves out the
// items about which there is only information.
func Findings[T any](
	about *finding.Question, items []T, most int, concerns func(T) bool, explain func(T) (finding.Finding, error),
) (found []finding.Finding, err error) {
	for _, item := range items {
		if !concerns(item) {
			continue
		}
		f, err := explain(item)
		if err != nil {
			return nil, err
		}
		if about.Kind == finding.Everything && f.Severity == finding.Info {
			continue
		}
		if found = append(found, f); len(found) == most {
			break
		}
	}
	return found, nil
}
