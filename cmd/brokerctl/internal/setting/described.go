package setting

import (
	"cmp"
	"fmt"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
)

// AsDescribed fills in what a registration does not say with what the configFile says of the agent: role, capabilities,
// attention, and the labels that the registration does not name.
func AsDescribed(request *pb.RegisterAgentRequest, agent map[string]string) {
	request.Role = cmp.Or(request.GetRole(), agent["role"])
	if len(request.GetCapabilities()) == 0 {
		request.Capabilities = commaSeparated(agent["capabilities"])
	}
	if mode, ok := jsonform.ParseEnum(pb.Attention(0).Descriptor(), agent["attention"]); ok {
		request.Attention = cmp.Or(request.GetAttention(), pb.Attention(mode))
	}
	labels, _ := labelsIn(agent["labels"]) // parseConfig has checked them
	for key, value := range labels {
		if _, given := request.GetLabels()[key]; !given {
			if request.Labels == nil {
				request.Labels = map[string]string{}
			}
			request.Labels[key] = value
		}
	}
}

// commaSeparated returns the words of a text such as "go, sql".
func commaSeparated(text string) []string {
	var words []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}

// labelsIn returns the labels of a text such as "team=web, area=ui".
func labelsIn(text string) (map[string]string, error) {
	labels := map[string]string{}
	for _, pair := range commaSeparated(text) {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf(`labels must be KEY=VALUE, with commas between them, such as "team=web, area=ui"`)
		}
		labels[key] = value
	}
	return labels, nil
}
