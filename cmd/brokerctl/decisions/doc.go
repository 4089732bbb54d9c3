// Package decisions has the commands with which agents decide: reviews, plans, other decisions, and votes.
package decisions
