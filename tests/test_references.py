"""The reference systems R1 to R5, and MQTT: which test proves each of their features.

A row names the feature as Godwit has it, tests that prove it on the way from the wire to the command line, and what of
it is not there yet. The rest of the file checks that every named test exists.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Row(NamedTuple):
    """One feature of one system."""

    system: str
    feature: str
    tests: str
    later: str = ""


ROWS = [
    # -- R1: rooms and temperatures -----------------------------------------------------------------------------------
    Row(
        "R1",
        "numbered topics, real sequence numbers, datagrams as long as the path allows",
        """
        native/test_subscriber_channel.py::test_labels_are_introduced_once_before_the_batches_that_use_them
        wire/test_packet.py::test_a_number_less_than_half_a_turn_away_comes_back_whole
        transport/test_path_mtu.py::test_a_connection_finds_the_size_of_its_path
        """,
    ),
    Row(
        "R1",
        "all types have a counterpart in the control messages",
        """
        wire/test_control.py::test_every_kind_is_known_by_its_name
        wire/test_control.py::test_each_message_comes_back
        wire/test_protocol_tables.py::test_the_tables_of_control_messages_and_groups
        """,
    ),
    Row(
        "R1",
        "topic policy `explicit`: a topic is created before it is published to",
        """
        broker/test_subscriptions.py::test_explicit_topics_must_be_created
        broker/test_administration.py::test_create
        net/test_publisher.py::test_a_topic_that_must_be_created_is_refused_until_it_is
        cli/test_topics.py::test_create
        """,
    ),
    Row(
        "R1",
        "topics listed in the broker's configuration are there from the start",
        """
        broker/test_catalogue.py::test_topics_of_the_configuration_are_there
        server/test_configuration.py::test_all_keys
        cli/test_broker.py::test_a_configuration
        """,
    ),
    Row(
        "R1",
        "every request gets a typed reply; errors have a code and a text; a readable sentence on the terminal",
        """
        native/test_control_router.py::test_an_unknown_kind_is_answered
        native/test_control_router.py::test_a_malformed_request_is_answered
        net/test_publisher.py::test_what_the_broker_refuses_is_a_typed_error_and_the_rest_goes_on
        cli/test_pub.py::test_errors_that_need_a_broker
        cli/test_shell.py::test_the_answers_of_the_reference_systems
        """,
    ),
    Row(
        "R1",
        "a publisher sees how many subscribers its topic has, and is told when a publication reached none",
        """
        broker/test_publications.py::test_a_publication_is_confirmed_with_the_number_reached
        net/test_publisher.py::test_publish_returns_when_confirmed_and_tells_how_many_it_reached
        net/test_publisher.py::test_the_subscribers_of_a_topic_are_known
        cli/test_pub.py::test_a_publisher_is_notified_that_there_is_no_subscriber
        cli/test_topics.py::test_show_has_the_number_of_subscribers
        """,
    ),
    Row(
        "R1",
        "a seeded sensor simulator with believable rooms",
        """
        cli/test_house_sensors.py::test_every_fault_shows
        cli/test_house_sensors.py::test_the_same_seed_gives_the_same_readings_and_faults
        cli/test_sensors.py::test_a_subscriber_gets_readings
        """,
    ),
    Row(
        "R1",
        "kick: an authorised client removes a subscription or a client, which is told why",
        """
        broker/test_administration.py::test_a_client_is_removed_and_told_why
        broker/test_administration.py::test_a_subscription_is_removed_and_the_client_is_told
        broker/test_administration.py::test_kicks_that_cannot_be
        net/test_client.py::test_a_kicked_client_is_reported_why_and_does_not_come_back
        net/test_subscription.py::test_a_kicked_subscription_raises_the_reason_after_the_delivered_messages
        cli/test_sub.py::test_a_kicked_subscriber_is_notified_and_ends
        cli/test_clients.py::test_a_subscription_then_the_client
        cli/test_shell_commands.py::test_clients_and_kick
        """,
    ),
    Row(
        "R1",
        "the broker listens on several addresses, and is the only link between two networks",
        """
        net/test_two_networks.py::test_the_broker_is_the_only_link_between_two_networks
        server/test_server.py::test_from_one_listener_to_the_other
        net/test_service.py::test_it_listens_on_several_addresses_and_connects_their_clients
        cli/test_broker.py::test_several_addresses
        """,
        later="a compose file with the two networks",
    ),
    Row(
        "R1",
        "a readable event log on the broker's terminal, one line an event",
        """
        net/test_notices.py::test_a_line_has_a_time_and_a_text
        net/test_notices.py::test_json_by_choice
        net/test_service.py::test_events_become_event_lines
        cli/test_broker.py::test_it_logs_events_and_stops_cleanly
        broker/test_subscriptions.py::test_a_subscriber_gets_what_comes_after_its_subscription
        """,
    ),
    Row(
        "R1",
        "wished for: several subscribers for a topic, several topics for a subscriber, segmentation",
        """
        broker/test_subscriptions.py::test_many_subscribers_and_many_topics
        transport/test_send_channels.py::test_records_are_cut_to_the_room_and_covered_exactly
        transport/test_end_to_end.py::test_big_records
        """,
    ),
    # -- R2: stop-and-wait, and topics that publishers create ---------------------------------------------------------
    Row(
        "R2",
        "publish, subscribe, unsubscribe, list topics as control messages",
        """
        broker/test_subscriptions.py::test_unsubscribing_ends_both_channels_and_the_memory
        broker/test_administration.py::test_topics_come_in_order_and_in_pages
        net/test_client.py::test_topics_are_listed_created_and_described
        net/test_blocking.py::test_everything_that_can_be_asked
        cli/test_topics.py::test_list
        cli/test_shell.py::test_a_script
        """,
    ),
    Row(
        "R2",
        "topic policy `publishers`: publishing creates a topic, subscribing to an unknown one is refused",
        """
        broker/test_subscriptions.py::test_topics_of_publishers_are_made_by_publishing
        net/test_subscription.py::test_a_topic_that_is_not_there_is_refused_by_policy
        cli/test_shell_commands.py::test_an_unknown_topic
        """,
    ),
    Row(
        "R2",
        "a subscriber gets messages from its subscription on",
        """
        broker/test_subscriptions.py::test_a_subscriber_gets_what_comes_after_its_subscription
        broker/test_subscriptions.py::test_start_positions
        net/test_subscription.py::test_where_a_subscription_begins
        cli/test_sub.py::test_what_came_before_is_not_shown_unless_asked_for
        """,
    ),
    Row(
        "R2",
        "blanks are allowed in topics",
        """
        broker/test_publications.py::test_topic_names_may_have_blanks_case_and_empty_levels
        cli/test_shell_commands.py::test_blanks_and_quotes
        """,
    ),
    Row(
        "R2",
        "an interactive shell in which typing and messages never block each other, with the same answers",
        """
        cli/test_shell.py::test_messages_arrive_while_the_user_types
        cli/test_shell.py::test_a_flood_does_not_stop_the_typing
        cli/test_shell_commands.py::test_the_answers_of_the_second_reference_system
        broker/test_subscriptions.py::test_the_same_filters_again_are_the_same_subscription
        """,
    ),
    Row(
        "R2",
        "ARQ discipline `stop-and-wait`, resent until acknowledged",
        """
        transport/test_arq.py::test_stop_and_wait_has_one_fragment_under_way
        wire/test_small_profile.py::test_a_client_from_the_page_alone
        """,
    ),
    Row(
        "R2",
        "many publishers and subscribers at once, on ports that the system picks",
        """
        broker/test_subscriptions.py::test_many_subscribers_and_many_topics
        broker/test_administration.py::test_clients_come_in_pages
        system/test_many_clients.py::test_all_connected_clients_are_reached_in_little_memory
        """,
    ),
    Row(
        "R2",
        "a datagram is as long as what it carries",
        """
        wire/test_frames.py::test_a_one_message_qos_1_publication_on_an_open_channel_costs_at_most_40_bytes
        wire/test_protocol_examples.py::test_the_session_logs_in_and_publishes
        """,
    ),
    Row(
        "R2",
        "wished for: sequence numbers and queues, better error control",
        """
        transport/test_recovery.py::test_a_packet_is_lost_when_one_three_newer_has_arrived
        broker/test_delivery.py::test_catching_up_loses_and_repeats_nothing
        server/test_memory_log.py::test_when_it_was_taken_publishers_go_on_and_nothing_is_lost
        """,
        later="several brokers",
    ),
    # -- R3: files of any size ----------------------------------------------------------------------------------------
    Row(
        "R3",
        "file transfer of any size in bounded memory, with progress, checked by hash, resumed after a break",
        """
        client/test_files.py::test_a_file_grows_to_its_whole_from_chunks_that_repeat_and_overlap
        client/test_files.py::test_a_run_goes_on_where_the_last_one_broke_off
        client/test_files.py::test_a_name_from_the_network_stays_in_its_folder
        net/test_files.py::test_a_file_arrives_as_it_was_sent
        net/test_files.py::test_files_cross_a_bad_network
        net/test_files.py::test_memory_stays_bounded
        net/test_files.py::test_a_sender_that_breaks_off_goes_on_where_it_was
        net/test_files.py::test_a_receiver_that_breaks_off_goes_on_where_it_was
        system/test_file_transfer.py::test_a_large_file_crosses_the_broker_whole
        cli/test_pub.py::test_a_file_crosses_the_broker
        """,
    ),
    Row(
        "R3",
        "packet numbers that do not wrap in practice",
        """
        wire/test_packet.py::test_numbers_follow_each_other_over_the_wrap
        wire/test_packet.py::test_expansion_is_the_definition
        """,
    ),
    Row(
        "R3",
        "handshake; acknowledgement ranges, whose gaps are the NAKs; begin and end of a transfer",
        """
        transport/test_end_to_end.py::test_a_handshake_under_heavy_loss
        transport/test_acknowledgement.py::test_tells_exactly_what_arrived
        broker/test_publications.py::test_the_end_of_a_channel
        client/test_files.py::test_chunks_of_a_file
        """,
    ),
    Row(
        "R3",
        "subscribe and unsubscribe with replies",
        """
        broker/test_subscriptions.py::test_unsubscribing_ends_both_channels_and_the_memory
        net/test_subscription.py::test_leaving_the_block_ends_it_at_the_broker
        """,
    ),
    Row(
        "R3",
        "loss detection by gaps, and by a probe timer that follows the measured round trip",
        """
        transport/test_recovery.py::test_a_packet_is_lost_when_nine_eighths_of_a_round_trip_have_passed
        transport/test_recovery.py::test_a_probe_is_due_when_nothing_is_heard_with_growing_patience
        """,
    ),
    Row(
        "R3",
        "ARQ disciplines `go-back-n` and `selective-repeat`",
        """
        transport/test_arq.py::test_go_back_n_resends_from_the_loss_on
        transport/test_arq.py::test_selective_repeat_resends_one_of_many
        transport/test_end_to_end.py::test_the_disciplines_stand_in_the_order_of_the_theory
        """,
    ),
    Row(
        "R3",
        "several publishers, several subscribers",
        """
        broker/test_subscriptions.py::test_many_subscribers_and_many_topics
        net/test_publisher.py::test_everything_arrives_in_order_over_a_bad_network
        system/test_lossy_network.py::test_all_messages_reach_all_subscribers_in_order
        """,
        later="several brokers",
    ),
    # -- R4: hierarchical topics, QoS 1, retained messages ------------------------------------------------------------
    Row(
        "R4",
        "control messages; compact acknowledgements",
        """
        wire/test_control.py::test_what_has_its_default_value_is_not_sent
        transport/test_acknowledgement.py::test_numbers_and_positions_are_truncated
        """,
    ),
    Row(
        "R4",
        "topics have levels; case matters; blanks are allowed; no wildcards when publishing",
        """
        broker/test_topics.py::test_good_topics
        broker/test_topics.py::test_bad_topics_are_told_what_is_wrong
        broker/test_publications.py::test_topics_that_cannot_be
        broker/test_publications.py::test_topic_names_may_have_blanks_case_and_empty_levels
        cli/test_pub.py::test_bad_input_is_one_line
        """,
    ),
    Row(
        "R4",
        "`*` stands for one or more levels, anywhere; `+` and `#` as in MQTT",
        """
        wire/test_filters.py::test_matching
        wire/test_filters.py::test_matching_is_as_defined
        broker/test_topics.py::test_a_trie_finds_what_matches
        cli/test_sub.py::test_several_filters_and_wildcards
        """,
    ),
    Row(
        "R4",
        "the table of `home/bedroom/*`",
        "wire/test_protocol_examples.py::test_the_filters "
        "broker/test_topics.py::test_the_vectors_hold_for_trie_and_tree",
    ),
    Row(
        "R4",
        "the table of `*/temperature`",
        "wire/test_protocol_examples.py::test_the_filters "
        "broker/test_topics.py::test_the_vectors_hold_for_trie_and_tree",
    ),
    Row(
        "R4",
        "the table of `home/*/temperature`",
        "wire/test_protocol_examples.py::test_the_filters "
        "broker/test_topics.py::test_the_vectors_hold_for_trie_and_tree",
    ),
    Row(
        "R4",
        "topic policy `open`, the default: subscribing to an unknown topic creates it",
        "broker/test_subscriptions.py::test_open_topics_come_into_being_by_any_use",
    ),
    Row(
        "R4",
        "a second subscription of the same client to the same topic changes nothing",
        """
        broker/test_subscriptions.py::test_the_same_filters_again_are_the_same_subscription
        client/test_subscriptions.py::test_the_same_filters_are_the_same_subscription
        cli/test_shell_commands.py::test_the_answers_of_the_second_reference_system
        net/test_subscription.py::test_the_same_subscription_again_is_refused
        """,
    ),
    Row(
        "R4",
        "QoS 0, 1 and 2; every request is resent until it is answered",
        """
        broker/test_publications.py::test_qos_0_is_forwarded_and_neither_kept_nor_confirmed
        broker/test_publications.py::test_a_confirm_says_that_the_log_has_it
        broker/test_identities.py::test_a_message_sent_again_is_confirmed_and_not_kept_twice
        client/test_protocol.py::test_unconfirmed_records_are_sent_again_byte_for_byte_in_order
        client/test_protocol.py::test_requests_are_answered_and_asked_again_until_then
        client/test_with_server.py::test_nothing_is_lost_or_repeated_over_reconnects
        net/test_publisher.py::test_an_identity_is_recognised_after_a_crash
        net/test_client.py::test_a_restarted_broker_gets_everything_that_was_not_confirmed
        """,
    ),
    Row(
        "R4",
        "retained messages, also for wildcards, also after a restart; an empty one clears",
        """
        broker/test_catalogue.py::test_a_newcomer_gets_the_last_message_with_the_flag
        broker/test_catalogue.py::test_also_by_wildcards_and_each_once
        broker/test_catalogue.py::test_an_empty_message_clears_it_and_is_delivered
        broker/test_restart.py::test_retained_messages_are_there_again
        net/test_subscription.py::test_retained_messages_come_first
        cli/test_pub.py::test_a_retained_message_waits_for_later_subscribers_until_it_is_cleared
        cli/test_shell_commands.py::test_retain
        """,
    ),
    Row(
        "R4",
        "the default port is 50000",
        "net/test_address.py::test_a_broker_is_named_in_the_usual_ways",
    ),
    Row("R4", "a dissector, a flow picture of a capture, a compose file with the same cast", "", later="all of it"),
    Row(
        "R4",
        "wished for: QoS 2, a smaller header",
        """
        broker/test_identities.py::test_a_message_sent_again_is_confirmed_and_not_kept_twice
        wire/test_frames.py::test_a_one_message_qos_1_publication_on_an_open_channel_costs_at_most_40_bytes
        """,
        later="several brokers",
    ),
    # -- R5: controllers, broker, workers -----------------------------------------------------------------------------
    Row(
        "R5",
        "workers volunteer, quit, and volunteer again under their name",
        """
        native/test_job_requests.py::test_a_volunteer_learns_its_lease_time
        native/test_job_requests.py::test_a_client_that_withdraws_keeps_its_leases_and_gets_no_more
        native/test_job_service.py::test_a_worker_that_comes_back_continues_its_tasks
        client/test_worker.py::test_the_last_call_holds
        net/test_worker.py::test_a_worker_may_be_run_again
        net/test_worker.py::test_a_name_is_one_worker
        cli/test_worker.py::test_one_name_is_one_worker
        cli/test_shell_commands.py::test_volunteer_and_withdraw
        """,
    ),
    Row(
        "R5",
        "controllers are called by their names, any number of them, and find their jobs when they come back",
        """
        native/test_work_channel.py::test_a_client_with_a_name_is_called_by_it
        native/test_work_channel.py::test_a_nameless_client_is_named_after_its_instance
        native/test_job_service.py::test_nameless_clients_keep_their_name_after_a_lost_connection
        net/test_client_jobs.py::test_a_controller_that_comes_back_finds_its_jobs
        system/test_jobs.py::test_a_controller_that_comes_back_finds_its_jobs_by_its_name
        """,
    ),
    Row(
        "R5",
        "a job is for a number of workers, or for all",
        """
        native/test_job_service.py::test_all_volunteers_get_a_task_of_a_job_for_all
        net/test_job_options.py::test_workers_are_counted_from_one
        net/test_client_jobs.py::test_workers_are_as_many_as_there_are_or_as_wanted
        cli/test_job.py::test_results_of_all_workers
        cli/test_shell_commands.py::test_how_many_workers
        """,
    ),
    Row(
        "R5",
        "the answer to a submission says how many workers agreed",
        """
        broker/jobs/test_lifecycle.py::test_agreed_is_the_smaller_of_the_requested_and_the_present_workers
        native/test_job_service.py::test_a_job_from_submission_to_result
        native/test_work_channel.py::test_a_result_holds_the_agreed_number_of_its_turn
        client/test_jobs.py::test_a_job_is_accepted_done_and_reported
        net/test_client_jobs.py::test_workers_are_as_many_as_there_are_or_as_wanted
        cli/test_job.py::test_the_number_of_the_job_and_of_its_workers_are_printed
        """,
    ),
    Row(
        "R5",
        "no worker gets the same job twice, unless no other worker is left",
        """
        broker/jobs/test_dispatch.py::test_the_tasks_of_a_job_go_to_different_workers
        broker/jobs/test_dispatch.py::test_no_worker_gets_a_job_twice_while_another_is_only_busy
        broker/jobs/test_dispatch.py::test_a_worker_gets_a_job_again_when_the_last_other_worker_leaves
        broker/jobs/test_dispatch.py::test_a_worker_gets_a_job_again_when_there_is_no_other_worker
        """,
    ),
    Row(
        "R5",
        "results, progress and failures are told to the controller; the job ends with the last of its tasks",
        """
        broker/jobs/test_model.py::test_a_job_changes_as_the_table_says_or_not_at_all
        native/test_work_channel.py::test_progress_is_sent_at_once_and_not_stored
        native/test_work_channel.py::test_a_failed_task_is_tried_again_until_its_retries_are_used_up
        native/test_job_notifier.py::test_results_that_do_not_fit_one_record_end_the_job_with_the_last
        native/test_job_service.py::test_an_ended_job_is_kept_for_a_while
        client/test_jobs.py::test_each_end_is_reported_once
        net/test_jobs.py::test_all_events_are_reported_in_order
        net/test_jobs.py::test_results_come_in_the_order_of_tasks
        cli/test_job_view.py::test_results_on_standard_output_and_the_rest_beside_it
        cli/test_job_view.py::test_one_job
        """,
    ),
    Row(
        "R5",
        "the tasks of a worker that quits, dies, stalls or is cut off go to others; what was agreed holds",
        """
        broker/jobs/test_lifecycle.py::test_the_agreed_number_holds_when_volunteers_leave
        native/test_job_service.py::test_a_worker_that_closes_its_connection_returns_its_tasks
        native/test_job_service.py::test_a_worker_that_dies_holds_its_tasks_until_its_lease_time_ends
        native/test_job_service.py::test_a_worker_that_never_reports_loses_its_tasks_and_gets_no_more
        native/test_job_service.py::test_another_instance_of_a_worker_has_no_leases_of_the_one_before
        native/test_work_channel.py::test_a_late_report_changes_nothing
        net/test_worker.py::test_stop_hands_tasks_back_at_once
        cli/test_worker.py::test_ctrl_c_hands_tasks_back_at_once
        cli/test_shell.py::test_withdrawing_hands_tasks_back
        system/test_jobs.py::test_a_worker_that_is_interrupted_hands_its_task_back_at_once
        system/test_jobs.py::test_the_task_of_a_worker_that_was_killed_goes_to_its_next_run_at_once
        system/test_jobs_storm.py::test_all_work_is_done_and_counted_once
        """,
    ),
    Row(
        "R5",
        "without a worker jobs wait at the broker, also through a restart",
        """
        native/test_job_service.py::test_a_job_without_workers_waits_also_through_a_restart
        client/test_jobs.py::test_a_job_that_waits_settles_later
        net/test_client_jobs.py::test_a_job_waits_for_its_first_worker
        cli/test_job.py::test_a_job_without_workers_waits
        system/test_jobs.py::test_jobs_wait_through_a_restart
        """,
    ),
    Row(
        "R5",
        "jobs of several controllers never mix",
        """
        native/test_work_channel.py::test_keys_of_different_controllers_never_mix
        native/test_job_service.py::test_numbers_are_never_used_twice
        client/test_jobs.py::test_keys_of_two_runs_differ
        sim/worlds/test_jobs_plan.py::test_two_controllers_have_equal_keys_and_two_workers_one_name
        """,
    ),
    Row(
        "R5",
        "`go-back-n`: an acknowledgement covers all before it, and what is repeated is acknowledged again",
        """
        transport/test_arq.py::test_go_back_n_resends_from_the_loss_on
        transport/test_arq.py::test_go_back_n_is_told_by_positions_not_by_packets
        transport/test_arq.py::test_go_back_n_has_a_window_under_way
        transport/test_arq.py::test_the_receiver_takes_only_the_next_position
        transport/test_arq.py::test_a_repeated_packet_is_answered_again
        """,
    ),
    Row(
        "R5",
        "a worker started before its broker keeps trying and gets through",
        """
        net/test_worker.py::test_a_worker_started_before_its_broker_keeps_trying
        cli/test_worker.py::test_a_worker_that_is_started_before_its_broker
        system/test_jobs.py::test_a_worker_started_before_its_broker_gets_through
        """,
    ),
    Row(
        "R5",
        "work travels in binary",
        """
        wire/test_work.py::test_each_group_comes_back_with_its_payloads
        wire/test_work.py::test_what_has_its_default_value_is_not_sent
        wire/test_protocol_tables.py::test_the_tables_of_control_messages_and_groups
        """,
    ),
    Row(
        "R5",
        "typing never blocks what arrives, nor the other way round",
        """
        cli/test_shell.py::test_tasks_arrive_while_the_user_types
        cli/test_shell_commands.py::test_updates_of_a_job_are_shown_while_the_user_types
        """,
    ),
    # -- MQTT ---------------------------------------------------------------------------------------------------------
    Row(
        "MQTT",
        "connections: clean start, session present, expiry, takeover, assigned identifiers, keep alive",
        """
        mqtt/test_protocol.py::test_client_identifiers
        mqtt/test_protocol.py::test_the_session_expiry_is_bounded_and_can_be_changed_at_the_end
        mqtt/test_protocol.py::test_a_silent_client_is_disconnected_after_its_keep_alive
        mqtt/test_hostile_clients.py::test_a_keep_alive_is_reported_only_if_it_differs
        """,
    ),
    Row(
        "MQTT",
        "QoS 0, 1 and 2 both ways, acknowledged after the commit",
        """
        mqtt/test_protocol.py::test_a_message_from_one_client_to_another
        mqtt/test_protocol.py::test_acknowledgements_wait_for_the_log
        mqtt/test_protocol.py::test_a_qos_2_message_is_published_once_whatever_is_repeated
        mqtt/test_protocol.py::test_a_release_that_is_not_stored_is_not_sent
        """,
    ),
    Row(
        "MQTT",
        "sessions across reconnects, restarts and kills, with the same packet identifiers and DUP",
        """
        mqtt/test_protocol.py::test_messages_in_flight_are_repeated_with_their_identifiers_after_a_reconnect
        mqtt/test_protocol.py::test_a_restarted_broker_resumes_sessions
        net/test_mqtt_killed.py::test_nothing_acknowledged_is_lost_when_the_broker_is_killed
        sim/worlds/test_mqtt.py::test_a_seed
        """,
    ),
    Row(
        "MQTT",
        "wills with delay and properties",
        """
        mqtt/test_protocol.py::test_a_will_is_published_unless_the_client_says_goodbye
        mqtt/test_protocol.py::test_a_will_waits_for_its_delay
        mqtt/test_protocol.py::test_a_will_expires_after_it_was_published
        """,
    ),
    Row(
        "MQTT",
        "retained messages, options of subscriptions, identifiers, overlapping filters",
        """
        mqtt/test_protocol.py::test_options_of_subscriptions
        mqtt/test_protocol.py::test_one_copy_for_overlapping_filters_with_all_identifiers
        mqtt/test_protocol.py::test_mqtt_and_native_clients_share_topics_and_retained_messages
        mqtt/test_protocol.py::test_unsubscribe
        """,
    ),
    Row(
        "MQTT",
        "shared subscriptions",
        """
        mqtt/test_groups.py::test_each_message_goes_to_one_member
        mqtt/test_groups.py::test_native_and_mqtt_members_share_one_group
        net/test_mqtt_clients.py::test_members_of_a_consumer_group
        """,
    ),
    Row(
        "MQTT",
        "topic aliases, receive maximum, maximum packet size",
        """
        mqtt/test_protocol.py::test_topic_aliases_both_ways
        mqtt/test_protocol.py::test_the_quota_of_a_client_is_kept
        mqtt/test_protocol.py::test_a_receive_maximum_that_is_exceeded
        mqtt/test_protocol.py::test_longer_packets_than_the_client_accepts_are_not_sent
        """,
    ),
    Row(
        "MQTT",
        "properties and expiry of messages, requests and replies",
        """
        mqtt/test_protocol.py::test_properties_of_messages_arrive_also_with_a_retained_message
        mqtt/test_protocol.py::test_a_message_that_has_expired_is_not_sent
        mqtt/test_protocol.py::test_response_information
        net/test_mqtt.py::test_requests_and_replies_between_native_and_mqtt_clients
        net/test_replies.py::test_observers_are_not_responders
        """,
    ),
    Row(
        "MQTT",
        "users: password, SCRAM-SHA-256, certificates, access rules",
        """
        mqtt/test_protocol.py::test_access_rules_apply_to_the_user
        mqtt/test_scram.py::test_a_login_and_another_authentication_later
        net/test_mqtt.py::test_a_certificate_names_the_user
        net/test_mqtt.py::test_tls_and_a_new_certificate
        """,
    ),
    Row(
        "MQTT",
        "figures under `$SYS/broker`, QoS 0 into the log",
        """
        mqtt/test_protocol.py::test_figures_under_the_names_of_other_brokers
        mqtt/test_protocol.py::test_qos_0_of_mqtt_clients_can_be_logged
        """,
    ),
    Row(
        "MQTT",
        "public judges: packet sequences over TCP and WebSocket, interoperability",
        """
        net/test_mqtt_judges.py::test_packet_sequences
        net/test_mqtt_judges.py::test_interoperability_with_paho
        mqtt/test_sequences.py::test_the_broker_answers_as_the_reference_sequences_expect
        """,
    ),
    Row(
        "MQTT",
        "clients: a matrix at 3.1.1 and 5.0, a bridge, MQTT-SN through a gateway",
        """
        net/test_mqtt_clients.py::test_a_client_of_the_matrix
        net/test_mqtt_clients.py::test_a_bridge_of_mosquitto
        net/test_mqtt_sn.py::test_sensors_behind_the_gateway
        """,
    ),
    Row(
        "MQTT",
        "bad input: lengths that are claims, clients that never read, many filters, identifiers used again, aliases",
        """
        mqtt/test_packets.py::test_a_length_is_only_a_claim
        mqtt/test_protocol.py::test_a_client_that_never_reads_costs_no_more_than_its_window
        net/test_mqtt.py::test_many_filters_in_one_subscribe_and_a_random_stream
        mqtt/test_protocol.py::test_packet_identifiers_that_are_used_again_too_early
        net/test_mqtt.py::test_invalid_packets_end_their_connection_and_no_other
        """,
    ),
    Row(
        "MQTT",
        "bad input: silent and slow connections, TLS handshakes without an end, WebSocket frames, foreign pages",
        """
        net/test_mqtt.py::test_silent_and_slow_connections_hurt_no_other
        net/test_mqtt.py::test_handshakes_of_tls_that_never_end_are_counted
        net/test_mqtt.py::test_invalid_websocket_frames
        net/test_mqtt.py::test_a_websocket_with_fragments_and_pings
        net/test_mqtt.py::test_pages_that_may_connect
        """,
    ),
    Row(
        "MQTT",
        "guides: from a device to a table, tested with paho-mqtt and MQTT.js",
        """
        net/test_mqtt.py::test_the_device_of_the_guide
        net/test_mqtt_clients.py::test_the_dashboard_of_the_guide
        pipeline/test_repair.py::test_content_types_choose_decoders
        """,
    ),
]


@cache
def names_in(path: Path) -> frozenset[str]:
    """The test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.system}: {row.feature}")
def test_every_feature_has_its_test(row: Row) -> None:
    assert row.tests or row.later
    for name in row.tests.split():
        path, _, function = name.partition("::")
        assert function in names_in(ROOT / "tests" / path), name


def test_every_row_of_the_systems_is_there() -> None:
    assert Counter(row.system for row in ROWS) == {"R1": 11, "R2": 9, "R3": 7, "R4": 13, "R5": 13, "MQTT": 15}
